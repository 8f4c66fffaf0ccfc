//! The container that a request is about, as long as it runs.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;

use super::context::ApiContext;
use super::http::path::{ContainerPath, PodPath};
use super::http::response::{self, Body};
use crate::error_chain::chain;
use crate::fs::blocking_io::within;
use crate::guest::connections::ExecName;
use crate::guest::script::{self, ContainerScripts};
use crate::guest::{CONTROL_SOCKET, Exec, Guest, Stdin};
use crate::names::PodUid;
use crate::pod::status::ephemeral;
use crate::state::{GuestCommand, InitStage, LastCommand, ShimSpec, StateDir, VmRun, VmRunView};

/// How long the disk may take to answer.
const STATE_LIMIT: Duration = Duration::from_secs(10);
/// How long the guest may take to be prepared for commands.
const SET_UP_LIMIT: Duration = Duration::from_secs(30);
const MAX_OUTPUT: usize = 64 << 10;
/// How long the guest may take to kill a command whose client is gone, or to give its exit code.
const KILL_LIMIT: Duration = Duration::from_secs(10);
const MAX_CODE: usize = 64;

/// A container that runs.
#[derive(Debug)]
pub(super) struct RunningContainer {
    pub(super) run: VmRun,
    pub(super) view: VmRunView,
    pub(super) control_socket: PathBuf,
    name: String,
    last: Option<LastCommand>,
}

/// How a user's command runs in a container.
#[derive(Debug)]
pub(super) struct CommandLine {
    pub(super) argv: Vec<String>,
    /// The line that kills it, or prints its exit code; empty where the guest agent alone can kill it.
    kill: Vec<String>,
    /// Its name, for as long as it runs.
    pub(super) _name: ExecName,
}

impl CommandLine {
    /// Kills the command, or asks for the exit code of one that has ended. The guest agent alone kills its own user's process only, and none
    /// that the process has started.
    pub(super) async fn end(&self, guest: &mut Guest) -> Option<i32> {
        if self.kill.is_empty() {
            return None;
        }
        let exec = Exec { argv: self.kill.clone(), ..Exec::default() };
        let done = guest.run(exec, KILL_LIMIT, MAX_CODE).await;
        String::from_utf8_lossy(&done.output).trim().parse::<u8>().ok().map(i32::from)
    }
}

/// The Pod of a path; the kubelet's answer if the Node has none.
#[expect(clippy::result_large_err, reason = "the error is the answer, sent once")]
pub(super) fn find_pod(
    path: &PodPath,
    context: &ApiContext,
) -> Result<(PodUid, std::sync::Arc<Pod>), Response<Body>> {
    path.find(&context.pods).ok_or_else(|| response::refusal(StatusCode::NOT_FOUND, "pod does not exist"))
}

/// The Pod's VM that may run, with what is known of it; or why the agent cannot tell.
pub(super) async fn find_vm(
    uid: PodUid,
    state: StateDir,
) -> Result<Option<(VmRun, VmRunView, Option<LastCommand>)>, String> {
    let found = within(STATE_LIMIT, move || read(&state, uid)).await;
    let found = found.ok_or_else(|| "the disk with the state of the Pods does not answer".to_owned())?;
    found.map_err(|error| chain(&error))
}

fn read(
    state: &StateDir,
    uid: PodUid,
) -> Result<Option<(VmRun, VmRunView, Option<LastCommand>)>, crate::state::FileError> {
    let Some(run) = state.pod(uid).runs()?.pop() else { return Ok(None) };
    let view = run.view()?;
    let last = run.last_command()?;
    let is_over = view.result.is_some() || view.outcome.is_some();
    Ok((!is_over).then_some((run, view, last)))
}

impl RunningContainer {
    /// The container of a path; the kubelet's answer if it does not run.
    pub(super) async fn find(path: &ContainerPath, context: &ApiContext) -> Result<Self, Response<Body>> {
        let (uid, pod) = find_pod(&path.pod, context)?;
        let name = &path.container;
        if ephemeral::is_ephemeral(&pod, name) {
            return Err(response::refusal(StatusCode::BAD_REQUEST, ephemeral::refusal(name)));
        }
        let not_found = || {
            // The kubelet's words and code.
            response::refusal(StatusCode::INTERNAL_SERVER_ERROR, format!("container not found ({name:?})"))
        };
        let found = find_vm(uid, context.state.clone()).await;
        let found = found.map_err(|words| response::refusal(StatusCode::INTERNAL_SERVER_ERROR, words))?;
        let (run, view, last) = found.ok_or_else(not_found)?;
        let vm = view.spec.as_ref().map(|spec| spec.vm.clone()).ok_or_else(not_found)?;
        let control_socket = context.tart.vm_dir(&vm).join(CONTROL_SOCKET);
        let container = Self { run, view, control_socket, name: name.clone(), last };
        if container.runs() { Ok(container) } else { Err(not_found()) }
    }

    pub(super) fn is_main(&self) -> bool {
        self.view.spec.as_ref().is_some_and(|spec| spec.is_main(&self.name))
    }

    /// Whether it has no command of its own.
    pub(super) fn only_boots(&self) -> bool {
        self.is_main() && self.view.spec.as_ref().is_some_and(ShimSpec::only_boots)
    }

    fn runs(&self) -> bool {
        let Some(spec) = &self.view.spec else { return false };
        if !self.is_main() {
            let states = self.view.init.iter();
            return states
                .filter(|it| it.name == self.name)
                .any(|it| matches!(it.now, InitStage::Running(_)));
        }
        if spec.only_boots() {
            return self.address().is_some();
        }
        self.last.as_ref().is_some_and(|last| last.container == self.name)
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.view.progress.as_ref()?.stage.address()
    }

    /// The line for a user's command, as the container's user, in its directory and with its environment.
    pub(super) async fn line(&self, command: &[String], context: &ApiContext) -> Result<CommandLine, String> {
        let name = context.guests.exec_name(&self.control_socket);
        let (exec, kill) = match &self.last {
            Some(last) if last.container == self.name && !last.exec_line.is_empty() => {
                (last.exec_line.clone(), last.kill_line.clone())
            }
            _ => match self.boot_environment() {
                Some(environment) => {
                    let scripts = self.boot_scripts(&environment, context).await?;
                    (scripts.exec(), scripts.kill())
                }
                // The shim of an older agent has left these words.
                None => {
                    let enter = self.view.progress.as_ref().map(|progress| progress.enter.clone());
                    let argv = enter.unwrap_or_default().into_iter().chain(command.iter().cloned());
                    return Ok(CommandLine { argv: argv.collect(), kill: Vec::new(), _name: name });
                }
            },
        };
        let named = |line: Vec<String>| line.into_iter().chain([name.to_string()]);
        let argv = named(exec).chain(command.iter().cloned()).collect();
        Ok(CommandLine { argv, kill: named(kill).collect(), _name: name })
    }

    /// The environment of a guest that only boots.
    fn boot_environment(&self) -> Option<GuestCommand> {
        let boot = self.view.spec.as_ref()?.boot.as_ref()?;
        Some(boot.environment.at(&self.address()?.to_string()))
    }

    /// The shim prepares a guest that only boots for no more than its hooks and probes.
    async fn boot_scripts(
        &self,
        environment: &GuestCommand,
        context: &ApiContext,
    ) -> Result<ContainerScripts, String> {
        let set_up = async |mut guest: Guest| {
            let argv = ["/bin/sh", "-s"].map(str::to_owned).to_vec();
            let stdin = Stdin::Bytes(script::set_up_boot_only(environment).into_bytes());
            let done = guest.run(Exec { argv, stdin, ..Exec::default() }, SET_UP_LIMIT, MAX_OUTPUT).await;
            match script::read_set_up(&done.output, &environment.user) {
                Some(Ok(scripts)) => Ok(scripts),
                Some(Err(not_started)) => Err(not_started.message),
                None => Err(done
                    .end
                    .err()
                    .map_or_else(|| script::incomplete_set_up(&done.output).message, |error| chain(&error))),
            }
        };
        let scripts = context.guests.boot_scripts(&self.control_socket, set_up);
        timeout(SET_UP_LIMIT, scripts)
            .await
            .unwrap_or_else(|_| Err("the guest agent does not answer".to_owned()))
    }
}
