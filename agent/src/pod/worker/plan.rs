//! The plan of a VM: its image, all that its Pod brings along, and what the shim is told of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::Worker;
use super::image_pull::{ImagePull, ReadyImage};
use super::inputs::{MissingInput, ReadyInputs};
use super::retry::StepError;
use super::shim_spec::{self, ContainerInputs};
use crate::crash_point;
use crate::env;
use crate::guest::script::is_shell_name;
use crate::image::ImageError;
use crate::names::ImageDigest;
use crate::names::Restart;
use crate::pod::admission::{VmPlan, read, runs_commands};
use crate::pod::sync::decide::Desired;
use crate::pod::sync::desired::{deadline, wanted};
use crate::pod::sync::image_backoff::ImageFailure;
use crate::pod::sync::time::seconds;
use crate::state::RestartPolicy;
use crate::state::container_spec::has_command;
use crate::state::{ContainerSpec, GuestBoot, GuestCommand, HostPort, InitState, ShimSpec};
use crate::tart::Share;
use crate::volume::boot_share::{self, BootShares};

impl Worker {
    /// Has everything ready, then writes the plan. A Pod that is to go meanwhile does not wait for it.
    pub(super) async fn plan(&mut self, restart: Restart, crashes: u32) -> Result<(), StepError> {
        let pod = self.pod.borrow().clone();
        // The image of a Pod may change; what is started from here on is what the Pod says now.
        self.plan = read(&pod);
        let Ok(plan) = self.plan.clone() else { return Ok(()) };
        let fetcher = ImagePull {
            images: self.host.images.clone(),
            disk_space: self.host.disk_space.clone(),
            events: self.host.events.clone(),
            secrets: self.secrets.clone(),
            pod: pod.clone(),
            had: self.last_image()?,
        };
        let begun = Instant::now();
        let _planning = self.host.roster.plans(self.dir.uid());
        let called_off = self.called_off(&plan.image);
        let fetch = fetcher.ensure(&plan);
        tokio::pin!(called_off, fetch);
        let mut image = None;
        let gathered = loop {
            let gathered = {
                let gather = self.belongings.gather();
                tokio::pin!(gather);
                loop {
                    tokio::select! {
                        gathered = &mut gather => break gathered,
                        fetched = &mut fetch, if image.is_none() => image = Some(fetched),
                        () = &mut called_off => return Ok(()),
                    }
                }
            };
            let shortage = match gathered {
                Err(shortage) if image.is_none() => shortage,
                gathered => break gathered,
            };
            // What is missing is told at once, while the image comes.
            self.lacks(&pod, shortage);
            let seen = self.observe()?;
            self.publish(&seen);
            tokio::select! {
                fetched = &mut fetch => image = Some(fetched),
                () = self.belongings.changed() => {}
                () = &mut called_off => return Ok(()),
            }
        };
        let (image, gathered) = match image {
            Some(image) => (image, gathered),
            None => {
                let image = tokio::select! {
                    fetched = &mut fetch => fetched,
                    () = &mut called_off => return Ok(()),
                };
                // Meanwhile others may have been planned whose volumes cannot be had together with these.
                tokio::select! {
                    gathered = self.belongings.gather() => (image, gathered),
                    () = &mut called_off => return Ok(()),
                }
            }
        };
        let image = match image {
            Ok(image) => image,
            Err(error) => {
                self.image_failed(&pod, &error);
                return Ok(());
            }
        };
        self.image_failure = None;
        let gathered = match gathered {
            Ok(gathered) => gathered,
            Err(shortage) => {
                self.lacks(&pod, shortage);
                return Ok(());
            }
        };
        self.told.shortage = None;
        self.want_no_room_for_volumes();
        self.host.metrics.stage_took("pull", begun.elapsed());
        if restart > Restart(0) {
            self.host.metrics.container_restarts();
        }
        if image.was_here {
            // The kubelet's words. Only now: what is missing may be looked for many times.
            let note = format!("Container image \"{}\" already present on machine", plan.image);
            self.host.events.normal(&pod, "Pulled", &note);
        }
        crash_point::point("agent.plan.gathered");
        self.write_plan(&pod, &plan, image, &gathered, restart, crashes)
    }

    /// The image that the Pod's last VM was made from.
    fn last_image(&self) -> Result<Option<ImageDigest>, StepError> {
        let Some(last) = self.dir.attempts()?.into_iter().next_back() else { return Ok(None) };
        Ok(last.view()?.spec.and_then(|spec| ImageDigest::parse(&spec.image)))
    }

    fn write_plan(
        &self,
        pod: &Arc<Pod>,
        plan: &VmPlan,
        image: ReadyImage,
        gathered: &ReadyInputs,
        restart: Restart,
        crashes: u32,
    ) -> Result<(), StepError> {
        let spec = pod.spec.clone().unwrap_or_default();
        let all = spec.init_containers.iter().flatten().chain(&spec.containers);
        self.dir.create_logs(all.map(|container| container.name.as_str()))?;
        crash_point::point("agent.plan.logs");
        let containers = |all: &[Container]| -> Vec<ContainerSpec> {
            let of = |one: &Container| {
                let variables = gathered.environments.get(&one.name).map(|known| known.variables.clone());
                let mounts = gathered.volumes.mounts.get(&one.name).cloned();
                let log = self.dir.log_path(&one.name, restart);
                let brought = ContainerInputs {
                    variables: variables.unwrap_or_default(),
                    mounts: mounts.unwrap_or_default(),
                    log,
                    late: env::may_change(one),
                };
                shim_spec::container(pod, one, brought)
            };
            all.iter().map(of).collect()
        };
        let Some(main) = containers(&spec.containers).pop() else { return Ok(()) };
        let boot = self.boot_shares(pod, &spec.containers, gathered, restart)?;
        crash_point::point("agent.plan.shares");
        let mut shares: Vec<Share> = gathered.volumes.shares.clone();
        let status_dir = boot.as_ref().map(|(boot, _)| boot.status_dir.clone());
        let given = boot.as_ref().map(|(_, given)| given.clone());
        shares.extend(boot.into_iter().flat_map(|(boot, _)| boot.shares));
        let attempt = self.dir.attempt(restart);
        let init_before = self.init_before(restart)?;
        attempt.plan(&ShimSpec {
            vm: attempt.vm(),
            image: image.digest.to_string(),
            image_name: Some(plan.image.clone()),
            base: Some(image.base),
            host_ports: self.host_ports(plan),
            tart: self.host.tart.program().to_owned(),
            cpu: plan.size.cpu,
            memory_mib: plan.size.memory_mib,
            cpu_is_limit: plan.cpu_is_limit,
            memory_is_limit: plan.memory_is_limit,
            shares,
            identity: shim_spec::identity(pod, &self.host.cluster_domain),
            init: containers(spec.init_containers.as_deref().unwrap_or_default()),
            init_before,
            init_again: RestartPolicy::of(spec.restart_policy.as_deref()) != RestartPolicy::Never,
            main,
            boot: given,
            status_dir,
            grace: seconds(spec.termination_grace_period_seconds),
            boot_limit: self.host.boot_limit,
            dhcp_leases: Some(self.host.dhcp_leases.clone()),
            crashes,
        })?;
        Ok(())
    }

    /// What is known of the init containers from the VM before this one.
    fn init_before(&self, restart: Restart) -> Result<Vec<InitState>, StepError> {
        let attempts = self.dir.attempts()?;
        let Some(before) = attempts.iter().rfind(|attempt| attempt.restart() < restart) else {
            return Ok(Vec::new());
        };
        let view = before.view()?;
        let Some(end) = &view.outcome else { return Ok(Vec::new()) };
        Ok(view.init_states().iter().map(|state| state.in_next_vm(end)).collect())
    }

    /// What a guest that only boots is given in place of a command's environment, and to say how it ended.
    fn boot_shares(
        &self,
        pod: &Pod,
        containers: &[Container],
        gathered: &ReadyInputs,
        restart: Restart,
    ) -> Result<Option<(BootShares, GuestBoot)>, StepError> {
        let Some(main) = containers.last().filter(|main| !has_command(main)) else {
            return Ok(None);
        };
        let variables = gathered.environments.get(&main.name).map(|known| known.variables.clone());
        let variables = variables.unwrap_or_default();
        let names = variables.iter().map(|(name, _)| name.as_str());
        let unfit: Vec<&str> = names.filter(|name| !is_shell_name(name)).collect();
        if !unfit.is_empty() {
            let words = format!(
                "Not in the guest's environment file, since no shell can set them: {}",
                unfit.join(", ")
            );
            self.host.events.warning(pod, "InvalidEnvironmentVariableNames", &words);
        }
        let spec = pod.spec.as_ref();
        let pods = spec.and_then(|spec| spec.security_context.as_ref());
        let left = spec.map(|spec| shim_spec::left_to_image(spec, main)).unwrap_or_default();
        // Once is enough for a Pod.
        if restart == Restart(0) && !left.is_empty() {
            let words = format!(
                "No effect on what a VM's image boots: {}. Of such fields, hooks and probes by exec heed the securityContext only",
                left.join(", ")
            );
            self.host.events.normal(pod, "LeftToImage", &words);
        }
        let shares = boot_share::create(&self.dir, restart, &variables).map_err(StepError::Boot)?;
        let given = GuestBoot {
            environment_file: shares.environment_file.clone(),
            runs_commands: runs_commands(main),
            surroundings: GuestCommand {
                env: variables,
                user: shim_spec::user(pods, main.security_context.as_ref()),
                ..GuestCommand::default()
            },
        };
        Ok(Some((shares, given)))
    }

    /// The Pod's host ports, at the Node's address unless the Pod says otherwise.
    fn host_ports(&self, plan: &VmPlan) -> Vec<HostPort> {
        let node = *self.host.address.borrow();
        plan.host_ports.iter().map(|port| HostPort { address: port.address.or(node), ..*port }).collect()
    }

    /// Waits until the Pod is not to run any more, or not with this image.
    pub(super) fn called_off(&self, image: &str) -> impl Future<Output = ()> + use<> {
        let dir = self.dir.clone();
        // What cannot be read is seen again by the worker.
        let is_evicted = move || matches!(dir.evicted(), Ok(Some(_)));
        called_off(self.pod.clone(), self.gone.clone(), image.to_owned(), self.stirred.clone(), is_evicted)
    }

    fn image_failed(&mut self, pod: &Pod, error: &ImageError) {
        let image = self.plan.as_ref().map_or("", |plan| plan.image.as_str());
        let failure = ImageFailure::new(image, error, self.image_failure.as_ref(), Timestamp::now());
        self.host.events.warning(pod, "Failed", failure.message());
        self.host.metrics.failed(error.reason());
        self.told.backed_off = false;
        self.image_failure = Some(failure);
    }

    /// Tells of something that is missing, once.
    pub(super) fn lacks(&mut self, pod: &Pod, shortage: MissingInput) {
        if shortage.no_space {
            self.want_room_for_volumes();
        } else {
            self.want_no_room_for_volumes();
        }
        if self.told.shortage.as_ref() == Some(&shortage.message) {
            return;
        }
        let note = match shortage.event {
            "Failed" => format!("Error: {}", shortage.message),
            _ => shortage.message.clone(),
        };
        self.host.events.afresh().warning(pod, shortage.event, &note);
        self.told.shortage = Some(shortage.message);
    }
}

/// Waits until a Pod is not to run any more, not for longer, or not with this image. Whoever evicts it stirs something.
async fn called_off(
    mut pod: watch::Receiver<Arc<Pod>>,
    mut gone: watch::Receiver<bool>,
    image: String,
    stirred: Arc<Notify>,
    is_evicted: impl Fn() -> bool,
) {
    loop {
        let deadline = deadline(&pod.borrow_and_update());
        let has_changed = read(&pod.borrow()).is_ok_and(|plan| plan.image != image);
        let is_wanted = matches!(wanted(&pod.borrow(), *gone.borrow_and_update()), Desired::Run(_));
        let left = deadline.map(|deadline| {
            Duration::try_from(deadline.at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO)
        });
        if !is_wanted || has_changed || left == Some(Duration::ZERO) || is_evicted() {
            return;
        }
        tokio::select! {
            () = stirred.notified() => {}
            Ok(()) = pod.changed() => {}
            Ok(()) = gone.changed() => {}
            () = sleep(left.unwrap_or(Duration::MAX)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn active_for(seconds: i64) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "spec": {"activeDeadlineSeconds": seconds, "containers": [{"name": "main", "image": "i"}]},
                "status": {"phase": "Pending", "startTime": "2000-01-01T00:00:00Z"},
            }))
            .unwrap(),
        )
    }

    fn with_image(image: &str) -> Arc<Pod> {
        let mut pod = Arc::unwrap_or_clone(active_for(i64::MAX));
        pod.spec.as_mut().unwrap().containers[0].image = Some(image.to_owned());
        Arc::new(pod)
    }

    #[tokio::test]
    async fn a_plan_is_called_off_when_the_pod_is_late_or_gone_or_evicted_or_has_another_image() {
        let (pods, pod) = watch::channel(active_for(i64::MAX));
        let (gones, gone) = watch::channel(false);
        let (stirred, evicted) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let begin = || {
            let evicted = evicted.clone();
            let is_evicted = move || evicted.load(Ordering::Relaxed);
            tokio::spawn(called_off(pod.clone(), gone.clone(), "i".to_owned(), stirred.clone(), is_evicted))
        };
        let waiting = begin();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        gones.send_replace(true);
        waiting.await.unwrap();
        gones.send_replace(false);
        let waiting = begin();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        pods.send_replace(with_image("j"));
        waiting.await.unwrap();
        pods.send_replace(with_image("i"));
        let waiting = begin();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        stirred.notify_one();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "something else has happened");
        evicted.store(true, Ordering::Relaxed);
        stirred.notify_one();
        waiting.await.unwrap();
        evicted.store(false, Ordering::Relaxed);
        let waiting = begin();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        pods.send_replace(active_for(60));
        waiting.await.unwrap();
    }
}
