//! The plan of a VM: a fetch of its image and its Pod's inputs is begun, and once it is over, the plan is written for the shim.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::Api;

use super::Worker;
use super::fetch::image_pull::{ImagePull, ReadyImage};
use super::fetch::inputs::{MissingInput, ReadyInputs};
use super::fetch::{Fetch, Stage};
use super::retry::StepError;
use super::shim_spec::{self, ContainerInputs};
use crate::apiserver::events::{EventReason, Events};
use crate::clock;
use crate::guest::script::is_shell_name;
use crate::mutex::lock;
use crate::names::{ImageDigest, Restart};
use crate::pod::admission::{VmPlan, read, read_segment, runs_commands};
use crate::pod::sync::decide::Observation;
use crate::pod::sync::image_backoff::ImageFailure;
use crate::pod::sync::next_vm::{TakenOver, taken_over};
use crate::pod::sync::time::seconds;
use crate::state::container_spec::{all_containers, has_command};
use crate::state::{
    ContainerSpec, GuestBoot, GuestCommand, HostPort, RestartPolicy, Segment, ShimSpec, VmRun,
};
use crate::tart::Share;
use crate::volume::boot_share::{self, BootShares};
use crate::{crash_point, env};

/// A VM for which everything is fetched.
struct PlannedVm {
    plan: VmPlan,
    segment: Segment,
    image: ReadyImage,
    taken_over: TakenOver,
    crashes: u32,
}

impl Worker {
    /// Begins to fetch what the Pod's next VM is made of. The worker polls the fetch while it waits.
    pub(super) fn begin_fetch(&mut self, seen: &Observation) -> Result<(), StepError> {
        let pod = self.updates.pod();
        let segment = seen.segments.get(seen.next_segment()).cloned().unwrap_or_default();
        // The image of a Pod may change. The next VM has the one that the Pod names now.
        let plan = read_segment(&pod, &segment);
        self.plan = plan.clone().and_then(|_| read(&pod));
        let (Ok(plan), Ok(_)) = (plan, &self.plan) else { return Ok(()) };
        let pull = ImagePull {
            manager: self.host.images.clone(),
            events: self.reporter.events().clone(),
            secrets: Api::namespaced(self.client.clone(), &self.name.namespace),
            container: Events::container(&pod, segment.first_field_path()),
            pod,
            had: self.last_image()?,
        };
        let guard = self.host.registry.plan(self.dir.uid());
        self.fetches.current = Some(Fetch::begin(pull, plan, segment, &self.inputs, guard));
        Ok(())
    }

    /// Writes the plan of a VM for which everything is fetched, or reports what is missing.
    pub(super) fn plan(&mut self, restart: Restart, crashes: u32) -> Result<(), StepError> {
        let over = self.fetches.current.take_if(|fetch| fetch.is_over());
        let Some(Fetch {
            stage: Stage::Over((image, inputs)), pod, plan, segment, begun, guard: _guard, ..
        }) = over
        else {
            return Ok(());
        };
        let container = || Events::container(&pod, segment.first_field_path());
        let took = begun.elapsed();
        let before = self.fetches.image_failure.take();
        let image = match image {
            Ok(image) => image,
            Err(error) => {
                let failure = ImageFailure::new(&plan.image, &error, before.as_ref(), clock::now());
                self.reporter.image_failed(container(), &failure);
                self.fetches.image_failure = Some(failure);
                return Ok(());
            }
        };
        let inputs = match inputs {
            Ok(inputs) => inputs,
            Err(missing) => {
                self.lacks(&pod, &missing);
                return Ok(());
            }
        };
        self.reporter.inputs_are_complete();
        self.disk_space.volumes_lack_space(false);
        // No two Pods can have the same memory.
        let _sizing = lock(&self.host.registry.sizing);
        let size = match self.vm_size(&plan, &image)? {
            Ok(size) => size,
            Err(error) => {
                let failure = ImageFailure::of_size(&plan.image, &error, before.as_ref(), clock::now());
                self.reporter.image_failed(container(), &failure);
                self.fetches.image_failure = Some(failure);
                return Ok(());
            }
        };
        self.reporter.metrics().stage_took("pull", took);
        let taken_over = self.taken_over(restart, &segment)?;
        if segment.main.is_some() && taken_over.main_restarts > 0 {
            self.reporter.metrics().container_restarts();
        }
        if image.was_here {
            // The kubelet's words. Only now: missing inputs may be looked for many times.
            let note = format!("Container image \"{}\" already present on machine", plan.image);
            self.reporter.events().about(container(), false, EventReason::Pulled, &note);
        }
        crash_point::point("agent.plan.gathered");
        let plan = VmPlan { size, ..plan };
        let vm = PlannedVm { plan, segment, image, taken_over, crashes };
        self.write_plan(&pod, vm, &inputs, restart)
    }

    fn last_image(&self) -> Result<Option<ImageDigest>, StepError> {
        let Some(last) = self.dir.runs()?.pop() else { return Ok(None) };
        Ok(last.view()?.spec.and_then(|spec| ImageDigest::parse(&spec.image)))
    }

    fn write_plan(
        &self,
        pod: &Arc<Pod>,
        planned: PlannedVm,
        inputs: &ReadyInputs,
        restart: Restart,
    ) -> Result<(), StepError> {
        let PlannedVm { plan, segment, image, taken_over, crashes } = planned;
        let TakenOver { init: init_before, main_restarts } = taken_over;
        let spec = pod.spec.clone().unwrap_or_default();
        self.dir.create_logs(all_containers(&spec).map(|container| container.name.as_str()))?;
        crash_point::point("agent.plan.logs");
        let containers = |all: &[Container]| -> Vec<ContainerSpec> {
            // The log of an init container has its own number for each start.
            let of = |one: &Container| {
                let own = ContainerInputs {
                    variables: inputs.variables_of(&one.name),
                    mounts: inputs.volumes.mounts.get(&one.name).cloned().unwrap_or_default(),
                    log: self.dir.log_path(&one.name, main_restarts),
                    asks_for_command: env::may_change(one),
                };
                shim_spec::container(pod, one, own)
            };
            all.iter().filter(|one| segment.has(&one.name)).map(of).collect()
        };
        let main = containers(&spec.containers).pop();
        let boot = match main {
            Some(_) => self.boot_shares(pod, &spec.containers, inputs, (restart, main_restarts))?,
            None => None,
        };
        crash_point::point("agent.plan.shares");
        let mut shares: Vec<Share> = inputs.volumes.shares.clone();
        let status_dir = boot.as_ref().map(|(boot, _)| boot.status_dir.clone());
        let given = boot.as_ref().map(|(_, given)| given.clone());
        shares.extend(boot.into_iter().flat_map(|(boot, _)| boot.shares));
        let run = self.dir.run(restart);
        run.plan(&ShimSpec {
            vm: run.vm(),
            image: image.digest.to_string(),
            image_name: Some(plan.image.clone()),
            base: Some(image.base),
            host_ports: self.host_ports(&plan),
            tart: self.host.tart.program().to_owned(),
            cpu: plan.size.cpu,
            memory_mib: plan.size.memory_mib,
            serial: plan.serial.unwrap_or(self.host.vms.serial),
            shares,
            identity: shim_spec::identity(pod, &self.host.vms.cluster_domain),
            init: containers(spec.init_containers.as_deref().unwrap_or_default()),
            init_before,
            restart_init: RestartPolicy::of(spec.restart_policy.as_deref()) != RestartPolicy::Never,
            main,
            main_restarts: Some(main_restarts),
            boot: given,
            status_dir,
            grace: seconds(spec.termination_grace_period_seconds),
            boot_limit: self.host.vms.boot_limit,
            dhcp_leases: Some(self.host.vms.dhcp_leases.clone()),
            local_probe_hosts: self.host.vms.local_probe_hosts,
            crashes,
        })?;
        Ok(())
    }

    /// What a VM takes over from those before it.
    fn taken_over(&self, restart: Restart, segment: &Segment) -> Result<TakenOver, StepError> {
        let runs = self.dir.runs()?.iter().map(VmRun::view).collect::<Result<Vec<_>, _>>()?;
        Ok(taken_over(&runs, restart, segment))
    }

    /// The shares of a guest that only boots: one with the environment that a command would have, and one for the guest to say how it ended.
    fn boot_shares(
        &self,
        pod: &Pod,
        containers: &[Container],
        inputs: &ReadyInputs,
        (restart, main_restarts): (Restart, u32),
    ) -> Result<Option<(BootShares, GuestBoot)>, StepError> {
        let Some(main) = containers.last().filter(|main| !has_command(main)) else {
            return Ok(None);
        };
        let variables = inputs.variables_of(&main.name);
        let names = variables.iter().map(|(name, _)| name.as_str());
        let unfit: Vec<&str> = names.filter(|name| !is_shell_name(name)).collect();
        if !unfit.is_empty() {
            let words = format!(
                "Not in the guest's environment file, since no shell can set them: {}",
                unfit.join(", ")
            );
            self.reporter.events().warning(pod, EventReason::InvalidEnvironmentVariableNames, &words);
        }
        let spec = pod.spec.as_ref();
        let pods = spec.and_then(|spec| spec.security_context.as_ref());
        let left = spec.map(|spec| shim_spec::left_to_image(spec, main)).unwrap_or_default();
        // One Event per Pod is enough.
        if main_restarts == 0 && !left.is_empty() {
            let words = format!(
                "No effect on what a VM's image boots: {}. Of such fields, hooks and probes by exec heed the securityContext only",
                left.join(", ")
            );
            self.reporter.events().normal(pod, EventReason::LeftToImage, &words);
        }
        let shares = boot_share::create(&self.dir, restart, &variables).map_err(StepError::Boot)?;
        let given = GuestBoot {
            environment_file: shares.environment_file.clone(),
            runs_commands: runs_commands(main),
            environment: GuestCommand {
                env: variables,
                user: shim_spec::user(pods, main.security_context.as_ref()),
                ..GuestCommand::default()
            },
        };
        Ok(Some((shares, given)))
    }

    /// The Pod's host ports, at the Node's address unless the Pod says otherwise.
    fn host_ports(&self, plan: &VmPlan) -> Vec<HostPort> {
        let node = *self.host.vms.address.borrow();
        plan.host_ports.iter().map(|port| HostPort { address: port.address.or(node), ..*port }).collect()
    }

    /// Reports an input that is missing, and frees disk space for it where that is the problem.
    pub(super) fn lacks(&mut self, pod: &Pod, missing: &MissingInput) {
        self.disk_space.volumes_lack_space(missing.no_space);
        self.reporter.missing_input(pod, missing);
    }
}
