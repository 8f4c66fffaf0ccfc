//! One world: a Mac with its agent behind a proxy to the API server, a clock of its own, and Pods.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fastrand::Rng;
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::clock::Clock;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::mac::{Fault, GuiSession, Mac};
use tart_kubelet_tests::proxy::Proxy;
use tart_kubelet_tests::wait::eventually;
use tokio::time::sleep;

use super::action::{Action, ApiPath, MacFault};
use super::api_call::{ApiCalls, SLOW};
use super::evidence::{self, ForeignVm};
use super::oracle::{self, Harm};
use super::pod_kind::{
    ALTERED_REPOSITORY, FORGED_CPUS, GOOD_IMAGES, HALTING_IMAGE, HOSTILE_IMAGE, Hostility, PodKind,
    WRONG_REPOSITORY,
};
use super::pod_watch::{PodWatch, SeenPod};

/// How the names of a user's VMs begin: nearly as those of a Pod's.
pub(crate) const FOREIGN: &str = "tk-builder-";
/// macOS runs two VMs at a time.
const PLACES: usize = 2;
const FOREIGN_VMS: usize = 2;
/// A world comes to rest within this time when nothing more happens to it. Machines are shared and noisy.
const REST: Duration = Duration::from_mins(5);
/// The node controller takes a Node for lost after a time that is longer than this.
const SHORT_OUTAGE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);
/// How long a new Pod waits for a place.
const FULL: Duration = Duration::from_secs(1);
const NAMES: usize = 4;

/// A Pod that is, or was, in the API.
#[derive(Debug, Clone)]
struct PodRecord {
    name: String,
    uid: String,
    kind: PodKind,
    harm: Harm,
    evidence: PathBuf,
}

/// What the Node's condition Ready has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readiness {
    /// A VM could start.
    True,
    /// Something may have made the Node not ready, rightly.
    Any,
}

/// How many of what a world has seen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) pods: usize,
    pub(crate) innocent_ends: usize,
    pub(crate) vm_runs: usize,
    pub(crate) rests: usize,
}

/// A world and what is known of it.
#[derive(Debug)]
pub(crate) struct World {
    node: String,
    mac: Mac,
    agent: Agent,
    running: Option<RunningAgent>,
    is_frozen: bool,
    proxy: Proxy,
    api_path: ApiPath,
    clock: Clock,
    pods: Api<Pod>,
    nodes: Api<Node>,
    calls: ApiCalls,
    watch: PodWatch,
    evidence: PathBuf,
    records: Vec<PodRecord>,
    foreign: Vec<ForeignVm>,
    faults: Vec<MacFault>,
    /// What its condition has to be, after all that has happened since the last rest.
    readiness: Readiness,
    /// Since when the agent cannot reach the API server.
    outage: Option<Instant>,
    is_cordoned: bool,
    /// Whether the world does not note whose processes it kills, to see that it finds out.
    is_blind: bool,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) async fn new(control_plane: &ControlPlane, index: usize, is_blind: bool) -> Result<Self> {
        let namespace = control_plane.namespace("soak").await?;
        let node = format!("soak-mac-{index}");
        let mac = Mac::new(control_plane.sandbox())?;
        for image in GOOD_IMAGES.into_iter().chain([HOSTILE_IMAGE]) {
            mac.add_image(image, &json!({}))?;
        }
        mac.add_image(HALTING_IMAGE, &json!({"boot": ["/bin/sh", "-c", "sleep 0.3; shutdown -h now"]}))?;
        for (repository, fault) in
            [(ALTERED_REPOSITORY, Fault::AlteredDisk), (WRONG_REPOSITORY, Fault::WrongManifest)]
        {
            mac.add_image(&format!("{repository}:1"), &json!({"cpu": FORGED_CPUS}))?;
            mac.set_fault(fault, repository)?;
        }
        mac.set_gui_session(GuiSession::Open)?;
        mac.set_fault(Fault::Runs, "")?;
        // As `packaging/host/dhcp-lease-time.sh` sets it. A Mac that lends its 253 addresses for a day has none left after as many VMs.
        mac.set_fault(Fault::DhcpLeaseTime, "600s")?;
        let proxy = Proxy::start(control_plane).await?;
        let kubeconfig = proxy.kubeconfig(&control_plane.node_kubeconfig(&node)?)?;
        let clock = Clock::new(control_plane.sandbox())?;
        let evidence = control_plane.sandbox().directory("evidence")?;
        let agent = Agent::new(&mac, &node, &kubeconfig)?
            .flag("--node-ip", "127.0.0.1")
            .flag("--allowed-host-path", &evidence.display().to_string())
            // A guest that hangs is given up while the world still watches.
            .flag("--vm-boot-timeout", "60s")
            .flag("--vm-address-timeout", "30s")
            .clock(&clock);
        let client = control_plane.client().await?;
        let pods = Api::namespaced(client.clone(), &namespace);
        let mut world = Self {
            running: Some(agent.start()?),
            watch: PodWatch::start(pods.clone()),
            nodes: Api::all(client),
            calls: ApiCalls::default(),
            node,
            mac,
            agent,
            is_frozen: false,
            proxy,
            api_path: ApiPath::Open,
            clock,
            pods,
            evidence,
            records: Vec::new(),
            foreign: Vec::new(),
            faults: Vec::new(),
            readiness: Readiness::Any,
            outage: None,
            is_cordoned: false,
            is_blind,
            tally: Tally::default(),
        };
        Box::pin(world.rest()).await.context("a new world")?;
        Ok(world)
    }

    /// Does one thing to the world. What cannot be done in its present state is left out.
    pub(crate) async fn act(&mut self, action: Action, random: &mut Rng) -> Result<()> {
        // Before anything is noted that would excuse what is already there.
        self.judge_all()?;
        match action {
            Action::Create(kind) => Box::pin(self.create(kind, random)).await?,
            Action::Delete { which, at_once } => self.delete(which, at_once).await?,
            Action::KillAgent => self.kill_agent()?,
            Action::RestartAgent => {
                self.kill_agent()?;
                self.running = Some(self.agent.start()?);
            }
            Action::KillShim(which) => {
                let pods = self.agent.state_dir().join("pods");
                self.kill_one(which, |words, uid| is_shim(words, &pods.join(uid)))?;
            }
            Action::KillTart(which) => {
                self.kill_one(which, |words, uid| {
                    let vm = format!("tk-{uid}-");
                    words.get(1).is_some_and(|word| word == "run")
                        && words.iter().any(|word| word.starts_with(&vm))
                })?;
            }
            Action::Freeze => self.freeze(Signal::SIGSTOP)?,
            Action::Thaw => self.freeze(Signal::SIGCONT)?,
            Action::SetClock(seconds) => self.clock.set(seconds)?,
            Action::Api(path) => self.set_api_path(path),
            Action::FaultComes(fault) => self.add_fault(fault)?,
            Action::FaultGoes => self.remove_fault()?,
            Action::PowerLoss => self.lose_power().await?,
            Action::CreateForeignVm => self.create_foreign_vm().await?,
            Action::Cordon(on) => self.cordon(on).await?,
            Action::Wait => sleep(5 * PAUSE).await,
        }
        self.note_outage();
        let begun = Instant::now();
        sleep(PAUSE).await;
        // On a machine that has no time for this, an agent may not renew its Lease in time either.
        self.excuse(begun.elapsed() > SLOW);
        Ok(())
    }

    async fn create(&mut self, kind: PodKind, random: &mut Rng) -> Result<()> {
        let patience = Instant::now() + FULL;
        while self.occupied()? >= PLACES {
            if Instant::now() >= patience {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
        // Names come again, with another UID.
        let is_free = |name: &String| self.records.iter().all(|record| record.name != *name);
        let Some(name) = (0..NAMES).map(|number| format!("pod-{number}")).find(is_free) else {
            return Ok(());
        };
        self.tally.pods += 1;
        let evidence = self.evidence.join(self.tally.pods.to_string());
        std::fs::create_dir(&evidence)?;
        std::fs::set_permissions(&evidence, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
        let manifest = kind.manifest(&name, &evidence, random);
        let manifest: Pod = serde_json::from_value(manifest)?;
        let created = self.calls.call("create a Pod", async || {
            match self.pods.create(&PostParams::default(), &manifest).await {
                // An earlier try that had no answer has created it: no other Pod has this name.
                Err(kube::Error::Api(status)) if status.code == 409 => self.pods.get(&name).await,
                answer => answer,
            }
        });
        let uid = created.await??.metadata.uid.context("no UID")?;
        if let PodKind::Hostile(Hostility::Fault(fault)) = kind {
            self.mac.set_fault(fault.of_vm(&format!("tk-{uid}-0")), "")?;
        }
        let harm = Harm { had_mac_fault: self.has_harmful_fault(), ..Harm::default() };
        self.records.push(PodRecord { name: name.clone(), uid, kind, harm, evidence });
        self.bind(&name).await
    }

    /// Binds a Pod as the scheduler does.
    async fn bind(&self, name: &str) -> Result<()> {
        let target = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.node.clone()),
            ..ObjectReference::default()
        };
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let binding = Binding { metadata, target };
        let bound = self.calls.call("bind a Pod", async || {
            let answer =
                self.pods.create_subresource("binding", name, &PostParams::default(), &binding).await;
            answer.map(|_: Value| ())
        });
        if let Err(error) = bound.await? {
            // An earlier try that had no answer may have bound it.
            let pod = self.calls.call("read a Pod", async || self.pods.get(name).await).await??;
            let node = pod.spec.and_then(|spec| spec.node_name);
            ensure!(node.as_ref() == Some(&self.node), "{error}");
        }
        Ok(())
    }

    /// How many Pods the scheduler, or macOS, would count on this Mac.
    fn occupied(&self) -> Result<usize> {
        let vms = evidence::vms_of_pods(self.mac.tart_home())?;
        let is_there = |record: &&PodRecord| {
            let SeenPod { state, is_gone, .. } = self.watch.history.of(&record.uid);
            (!is_gone && !state.is_over()) || vms.iter().any(|vm| vm.contains(&record.uid))
        };
        Ok(self.records.iter().filter(is_there).count())
    }

    async fn delete(&mut self, which: usize, at_once: bool) -> Result<()> {
        let present: Vec<_> = self.records.iter_mut().filter(|record| !record.harm.is_deleted).collect();
        let Some(count) = Some(present.len()).filter(|count| *count > 0) else { return Ok(()) };
        let Some(record) = present.into_iter().nth(which % count) else { return Ok(()) };
        record.harm.is_deleted = true;
        let name = record.name.clone();
        let parameters =
            if at_once { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
        self.delete_pod(&name, &parameters).await
    }

    async fn delete_pod(&self, name: &str, parameters: &DeleteParams) -> Result<()> {
        let deleted =
            self.calls.call("delete a Pod", async || self.pods.delete(name, parameters).await.map(drop));
        match deleted.await? {
            // The Pod may be gone already.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => Ok(answer?),
        }
    }

    fn kill_agent(&mut self) -> Result<()> {
        if let Some(running) = self.running.take() {
            running.kill9()?;
        }
        Ok(())
    }

    /// Kills the processes of a Pod that is not over, and notes it if there were any.
    fn kill_one(&mut self, which: usize, is_meant: impl Fn(&[String], &str) -> bool) -> Result<()> {
        let history = &self.watch.history;
        let live: Vec<_> =
            self.records.iter_mut().filter(|record| !history.of(&record.uid).state.is_over()).collect();
        let Some(count) = Some(live.len()).filter(|count| *count > 0) else { return Ok(()) };
        let Some(record) = live.into_iter().nth(which % count) else { return Ok(()) };
        let killed = evidence::signal_processes(Signal::SIGKILL, |words| is_meant(words, &record.uid))?;
        record.harm.kills += usize::from(killed > 0 && !self.is_blind);
        Ok(())
    }

    fn freeze(&mut self, signal: Signal) -> Result<()> {
        if let Some(running) = &self.running {
            running.kill(signal)?;
        }
        let state = self.agent.state_dir();
        evidence::signal_processes(signal, |words| is_shim(words, &state))?;
        self.is_frozen = signal == Signal::SIGSTOP;
        Ok(())
    }

    fn set_api_path(&mut self, path: ApiPath) {
        match path {
            ApiPath::Open => self.proxy.open(),
            ApiPath::Blocked => self.proxy.block(),
            ApiPath::Severed => self.proxy.sever(),
            ApiPath::Slow => self.proxy.delay(Duration::from_millis(50)),
            ApiPath::Forgotten => self.proxy.forget(),
        }
        self.api_path = path;
    }

    fn excuse(&mut self, is_excused: bool) {
        if is_excused {
            self.readiness = Readiness::Any;
        }
    }

    /// A Node may rightly be lost after a long outage.
    fn note_outage(&mut self) {
        let is_cut = matches!(self.api_path, ApiPath::Blocked | ApiPath::Severed);
        if self.running.is_some() && !self.is_frozen && !is_cut {
            self.outage = None;
        } else {
            let since = *self.outage.get_or_insert_with(Instant::now);
            self.excuse(since.elapsed() > SHORT_OUTAGE);
        }
        self.excuse(self.api_path == ApiPath::Forgotten);
    }

    fn has_harmful_fault(&self) -> bool {
        self.faults.iter().any(|fault| !fault.is_harmless())
    }

    fn add_fault(&mut self, fault: MacFault) -> Result<()> {
        if self.faults.contains(&fault) {
            return Ok(());
        }
        self.excuse(!fault.is_harmless());
        if !fault.is_harmless() {
            for record in &mut self.records {
                let runs_once = self.watch.history.of(&record.uid).state.phase == "Running"
                    && record.kind != PodKind::Retry;
                record.harm.had_mac_fault |= !runs_once;
            }
        }
        self.faults.push(fault);
        match fault {
            MacFault::LoggedOut => {
                self.mac.set_gui_session(GuiSession::None)?;
                self.mac.set_fault(Fault::VzInternal, "")
            }
            MacFault::Tart(fault, parameter) => self.mac.set_fault(fault, parameter),
        }
    }

    fn remove_fault(&mut self) -> Result<()> {
        if self.faults.is_empty() {
            return Ok(());
        }
        match self.faults.remove(0) {
            MacFault::LoggedOut => {
                self.mac.set_gui_session(GuiSession::Open)?;
                self.mac.clear_fault(Fault::VzInternal)
            }
            MacFault::Tart(fault, _) => self.mac.clear_fault(fault),
        }
    }

    async fn lose_power(&mut self) -> Result<()> {
        for record in &mut self.records {
            record.harm.kills += usize::from(!self.watch.history.of(&record.uid).state.is_over());
        }
        let mac = self.mac.clone();
        tokio::task::spawn_blocking(move || mac.lose_power()).await??;
        self.running = None;
        self.is_frozen = false;
        Ok(())
    }

    async fn create_foreign_vm(&mut self) -> Result<()> {
        if self.foreign.len() >= FOREIGN_VMS || !self.faults.is_empty() {
            return Ok(());
        }
        let name = format!("{FOREIGN}{}", self.foreign.len());
        self.mac.tart(["clone", GOOD_IMAGES[0], &name]).await?;
        self.foreign.push(ForeignVm::new(self.mac.tart_home().join("vms").join(name))?);
        Ok(())
    }

    async fn cordon(&mut self, on: bool) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": on}}));
        let cordoned = async || self.nodes.patch(&self.node, &PatchParams::default(), &patch).await;
        self.calls.call("cordon a Node", cordoned).await??;
        self.is_cordoned = on;
        Ok(())
    }

    /// Looks at everything that must hold at any time.
    pub(crate) async fn check(&mut self) -> Result<()> {
        self.tally.vm_runs = evidence::no_vm_ran_twice(self.mac.host())?;
        evidence::no_vm_of_forged_image(self.mac.tart_home())?;
        self.foreign.iter().try_for_each(ForeignVm::ensure_untouched)?;
        if let Some(running) = &self.running {
            running.process().ensure_running().context("the agent has ended by itself")?;
        }
        self.judge_all()?;
        // A control plane that is slow may take the Node of a sound agent for lost.
        self.excuse(self.calls.were_slow());
        if self.readiness == Readiness::True {
            self.node_is_ready().await?;
        }
        self.sweep().await
    }

    fn judge_all(&self) -> Result<()> {
        self.records.iter().try_for_each(|record| judge(record, &self.watch.history.of(&record.uid)))
    }

    /// Deletes Pods that are over, and forgets those that are gone.
    async fn sweep(&mut self) -> Result<()> {
        let mut kept = Vec::new();
        for mut record in std::mem::take(&mut self.records) {
            let seen = self.watch.history.of(&record.uid);
            // It may have ended since all were judged, and its deletion would excuse any end.
            judge(&record, &seen)?;
            let SeenPod { state, is_gone, .. } = seen;
            if state.is_over() && !record.harm.is_deleted {
                self.tally.innocent_ends += usize::from(!record.kind.is_hostile());
                record.harm.is_deleted = true;
                self.delete_pod(&record.name, &DeleteParams::default()).await?;
            }
            let is_left =
                evidence::vms_of_pods(self.mac.tart_home())?.iter().any(|vm| vm.contains(&record.uid));
            if !is_gone || is_left {
                kept.push(record);
                continue;
            }
            if let PodKind::Hostile(Hostility::Fault(fault)) = record.kind {
                self.mac.clear_fault(fault.of_vm(&format!("tk-{}-0", record.uid)))?;
            }
            self.watch.history.forget(&record.uid);
        }
        self.records = kept;
        Ok(())
    }

    async fn node_is_ready(&self) -> Result<()> {
        let node = self.calls.call("read a Node", async || self.nodes.get(&self.node).await).await??;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|one| one.type_ == "Ready").context("no condition Ready")?;
        ensure!(ready.status == "True", "the Node is not ready, although VMs can start: {ready:?}");
        let is_cordoned = node.spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        ensure!(is_cordoned == self.is_cordoned, "the Node's cordon is {is_cordoned}");
        Ok(())
    }

    /// Takes all harm away, waits until every Pod is where it belongs, clears the Mac, and has it prove that a VM can start.
    pub(crate) async fn rest(&mut self) -> Result<()> {
        self.set_api_path(ApiPath::Open);
        while !self.faults.is_empty() {
            self.remove_fault()?;
        }
        self.freeze(Signal::SIGCONT)?;
        if self.running.is_none() {
            self.running = Some(self.agent.start()?);
        }
        self.outage = None;
        self.until("every Pod is where it belongs", |world| {
            for record in world.records.iter().filter(|record| !record.harm.is_deleted) {
                let state = world.watch.history.of(&record.uid).state;
                oracle::settled(record.kind, record.harm, &state)
                    .map_err(|why| anyhow!("{} ({}): {why}", record.name, record.uid))?;
            }
            Ok(())
        })
        .await?;
        self.judge_all()?;
        for record in &mut self.records {
            record.harm.is_deleted = true;
        }
        for record in &self.records {
            self.delete_pod(&record.name, &DeleteParams::default()).await?;
        }
        self.until("the Mac is clear", |world| {
            ensure!(world.records.is_empty(), "Pods are left: {:?}", world.records);
            let left = evidence::names_in(&world.agent.state_dir().join("pods"))?;
            ensure!(left.is_empty(), "directories of Pods are left: {left:?}");
            let vms = evidence::vms_of_pods(world.mac.tart_home())?;
            ensure!(vms.is_empty(), "VMs of Pods are left: {vms:?}");
            Ok(())
        })
        .await?;
        Box::pin(self.prove()).await?;
        self.readiness = Readiness::True;
        self.tally.rests += 1;
        Ok(())
    }

    /// Waits for a world that comes to rest. What must hold at any time holds meanwhile.
    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> Result<()>) -> Result<()> {
        let end = Instant::now() + REST;
        loop {
            Box::pin(self.check()).await?;
            match is_so(self) {
                Ok(()) => return Ok(()),
                Err(why) if Instant::now() >= end => {
                    return Err(why.context(format!("waited {REST:?} in vain until {what}")));
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// A VM that runs refutes what failures of others have said about the Mac, so that the Node must be ready.
    async fn prove(&mut self) -> Result<()> {
        self.create(PodKind::Job { code: 0 }, &mut Rng::with_seed(0)).await?;
        self.until("a VM has proved that VMs can start", |world| {
            ensure!(world.records.is_empty(), "{:?} is not over", world.records);
            Ok(())
        })
        .await?;
        eventually("a Node that is ready", REST, async || self.node_is_ready().await).await
    }

    /// What the world was like, for the person who looks for the reason of a violation.
    pub(crate) fn keep_evidence(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        std::fs::write(directory.join("world"), format!("{self:#?}\n"))?;
        let agent = self.agent.state_dir();
        let sources = [
            agent.parent().unwrap_or(&agent).to_owned(),
            self.mac.host().join("runs"),
            self.mac.host().join("faults"),
            self.evidence.clone(),
        ];
        let copied = std::process::Command::new("cp").arg("-R").args(sources).arg(directory).status()?;
        ensure!(copied.success(), "cp: {copied}");
        Ok(())
    }
}

fn judge(record: &PodRecord, seen: &SeenPod) -> Result<()> {
    let PodRecord { name, uid, kind, harm, evidence } = record;
    let testimony = evidence::testimony(evidence)?;
    let verdict = match &seen.contradiction {
        Some(contradiction) if !kind.is_hostile() => Err(contradiction.clone()),
        _ => oracle::judge(*kind, *harm, &testimony, &seen.state),
    };
    verdict.map_err(|why| anyhow!("{name} ({uid}), {kind:?}, {harm:?}: {why}; {:?}", seen.state))
}

fn is_shim(words: &[String], state: &Path) -> bool {
    words.get(1).is_some_and(|word| word == "shim")
        && words.get(2).is_some_and(|dir| Path::new(dir).starts_with(state))
}
