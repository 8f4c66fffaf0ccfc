//! The Actions runner of a builder, at GitHub: its token before, and its registration after.

use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::{Api, ResourceExt as _};

use super::super::reconciler::{ReconcileError, Reconciler, reference};
use crate::apiserver::call;
use crate::crd::ScalewayAppleSiliconMachine as Machine;
use crate::github::{App, AppError, GithubError};
use crate::host::Secret;

/// Why GitHub was not asked, or said no.
#[derive(Debug, thiserror::Error)]
pub(in crate::machine) enum RunnerError {
    #[error("the machine names no Secret of a GitHub App")]
    NoApp,
    #[error("the Secret {0} of the GitHub App is not there")]
    NoSecret(String),
    #[error("the Secret {name} of the GitHub App is of no use")]
    BadSecret {
        name: String,
        #[source]
        source: AppError,
    },
    #[error(transparent)]
    Github(#[from] GithubError),
}

impl RunnerError {
    /// Whether the same call may succeed later without an operator's doing.
    pub(in crate::machine) fn is_transient(&self) -> bool {
        matches!(self, Self::Github(error) if error.is_transient())
    }
}

impl Reconciler {
    /// A token with which the runner of a machine is registered.
    pub(in crate::machine) async fn runner_token(
        &self,
        machine: &Machine,
    ) -> Result<Result<Secret, RunnerError>, ReconcileError> {
        let (app, org) = match self.app(machine).await? {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        Ok(self.github.registration_token(&app, &org).await.map_err(RunnerError::from))
    }

    /// Removes the registration of a machine's runner. A machine whose runner is not the provider's has none.
    pub(in crate::machine) async fn remove_runner(
        &self,
        machine: &Machine,
    ) -> Result<Result<(), RunnerError>, ReconcileError> {
        let (app, org) = match self.app(machine).await? {
            Ok(found) => found,
            Err(RunnerError::NoApp) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        let name = machine.name_any();
        Ok(self.github.remove_runner(&app, &org, &name).await.map_err(RunnerError::from))
    }

    /// The App that registers the runner of a machine, and the organization.
    async fn app(&self, machine: &Machine) -> Result<Result<(App, String), RunnerError>, ReconcileError> {
        let wanted = machine.spec.gh_actions_runner.as_ref().filter(|one| !one.gh_app_secret_name.is_empty());
        let Some(wanted) = wanted.filter(|_| self.config.actions_runner.is_some()) else {
            return Ok(Err(RunnerError::NoApp));
        };
        let (namespace, name) = (reference(machine).namespace, wanted.gh_app_secret_name.clone());
        let api = Api::<SecretObject>::namespaced(self.client.clone(), &namespace);
        let Some(secret) = call("read the Secret of the GitHub App", api.get_opt(&name)).await? else {
            return Ok(Err(RunnerError::NoSecret(name)));
        };
        Ok(match App::parse(&secret.data.unwrap_or_default()) {
            Ok(app) => Ok((app, wanted.gh_org.clone())),
            Err(source) => Err(RunnerError::BadSecret { name, source }),
        })
    }
}
