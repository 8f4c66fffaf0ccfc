//! A model test: machines come and go, processes die at any call, leaders change, calls arrive late and fail, and all the while no host is
//! had twice, none is lost, and none of an operator's is touched.
//!
//! The reference knows what the user wants. What is tested are the pool and the reclaimer against the simulated Scaleway, driven as the reconciler
//! drives them: by its own decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use scaleway_sim::{Install, Settings, Status};
use tokio::runtime::Runtime;

use super::model_decision::{Known, next_step};
use super::*;
use crate::machine::Step as Decided;
use crate::pool::ScalewayPool;
use crate::pool::scaleway::scene::{SECRET, Scene, held, prefix, request, zone};
use crate::pool::{HostName, ListedHost};

const MACHINES: u8 = 4;
const HOSTS: [&str; 5] = ["tuist-pool-1", "tuist-pool-2", "tuist-pool-3", "tuist-pool-4", "tuist-pool-5"];
const OUTSIDE: [&str; 3] = ["office", "builders-pool-1", "other-runner-1"];
const GATE: &str = "runner-";

/// What may go wrong with a call or two.
const FAULTS: [&str; 11] = [
    "update-server 1 error 500",
    "update-server 3 error 503",
    "update-server 1 error 403",
    "update-server 1 error 404",
    "update-server 1 cut",
    "update-server 3 lose",
    "reinstall-server 3 error 502",
    "reinstall-server 1 cut",
    "get-server 3 gateway",
    "list-servers 1 throttle 0",
    "list-servers 3 error 500",
];

/// How a process dies in the middle of what it does.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// It does not die.
    Not,
    /// The call arrives and is carried out, and the process does not hear the answer.
    AtCall(u8),
    /// The same, but the call is still on its way, if it is a rename. It arrives later.
    WithCallUnderway(u8),
    /// After the last call, before the result is recorded.
    BeforeRecord,
}

/// What happens.
#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    Delete(u8),
    ForceDelete(u8),
    SetPaused(u8, bool),
    PauseCluster(bool),
    /// Its host cannot be bootstrapped.
    Fail(u8),
    /// An operator hands all hosts back that are in quarantine.
    HandBack,
    Reconcile(u8, Death),
    /// Two machines at once, in one process.
    ReconcileBoth(u8, u8),
    Reclaim {
        active: bool,
        death: Death,
    },
    ChangeLeader,
    Fault(usize),
    ApiServerFails,
    LateCallsArrive,
    InstallationsEnd,
}

/// What the user wants: which machines, and whether they are paused.
#[derive(Debug, Clone)]
struct Wanted {
    machines: BTreeMap<u8, bool>,
    renames_while_changing: bool,
}

struct Reference;

impl ReferenceStateMachine for Reference {
    type State = Wanted;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Wanted> {
        any::<bool>()
            .prop_map(|renames_while_changing| Wanted { machines: BTreeMap::new(), renames_while_changing })
            .boxed()
    }

    fn transitions(_: &Wanted) -> BoxedStrategy<Step> {
        let machine = 0..MACHINES;
        let death = prop_oneof![
            3 => Just(Death::Not),
            2 => (1u8..9).prop_map(Death::AtCall),
            2 => (1u8..9).prop_map(Death::WithCallUnderway),
            1 => Just(Death::BeforeRecord),
        ];
        prop_oneof![
            4 => machine.clone().prop_map(Step::Add),
            3 => machine.clone().prop_map(Step::Delete),
            1 => machine.clone().prop_map(Step::ForceDelete),
            1 => (machine.clone(), any::<bool>()).prop_map(|(machine, paused)| Step::SetPaused(machine, paused)),
            1 => prop_oneof![1 => Just(true), 2 => Just(false)].prop_map(Step::PauseCluster),
            2 => machine.clone().prop_map(Step::Fail),
            1 => Just(Step::HandBack),
            9 => (machine.clone(), death.clone()).prop_map(|(machine, death)| Step::Reconcile(machine, death)),
            3 => (machine.clone(), machine).prop_map(|(a, b)| Step::ReconcileBoth(a, b)),
            3 => (any::<bool>(), death).prop_map(|(active, death)| Step::Reclaim { active, death }),
            2 => Just(Step::ChangeLeader),
            3 => (0..FAULTS.len()).prop_map(Step::Fault),
            1 => Just(Step::ApiServerFails),
            3 => Just(Step::LateCallsArrive),
            4 => Just(Step::InstallationsEnd),
        ]
        .boxed()
    }

    fn apply(mut wanted: Wanted, step: &Step) -> Wanted {
        match step {
            Step::Add(machine) => {
                wanted.machines.entry(*machine).or_insert(false);
            }
            Step::Delete(machine) | Step::ForceDelete(machine) => {
                wanted.machines.remove(machine);
            }
            Step::SetPaused(machine, paused) => {
                wanted.machines.entry(*machine).and_modify(|own| *own = *paused);
            }
            _ => {}
        }
        wanted
    }
}

/// The pool of the leader, and the world around it.
struct Fleet {
    runtime: Runtime,
    scene: Scene,
    leader: Arc<ScalewayPool>,
    deleting: BTreeSet<String>,
    paused: BTreeSet<String>,
    /// All machines are paused, with their Cluster.
    is_cluster_paused: bool,
    /// Machines whose hosts are to be given up.
    failed: BTreeSet<String>,
    /// Which machine had a host last, and how often the host was installed then.
    last_use: BTreeMap<HostId, (String, u32)>,
    outside: BTreeMap<HostId, String>,
}

fn name(machine: u8) -> String {
    format!("runner-{machine}")
}

impl Fleet {
    fn new(renames_while_changing: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let settings = Settings {
            secret_key: SECRET.to_owned(),
            install: Install::ByHand,
            renames_while_changing,
            ..Settings::default()
        };
        let names: Vec<&str> = OUTSIDE.into_iter().chain(HOSTS).collect();
        let scene = runtime.block_on(Scene::with(settings, &names));
        let outside = OUTSIDE.map(|name| (scene.id(name), name.to_owned())).into();
        let leader = scene.pool();
        Self {
            runtime,
            scene,
            leader,
            deleting: BTreeSet::new(),
            paused: BTreeSet::new(),
            is_cluster_paused: false,
            failed: BTreeSet::new(),
            last_use: BTreeMap::new(),
            outside,
        }
    }

    fn add(&mut self, name: &str) {
        let is_there = self.scene.cluster.with(|records| records.iter().any(|own| own.machine.name == name));
        if !is_there {
            self.scene.cluster.add(name);
            self.deleting.remove(name);
            self.paused.remove(name);
            self.failed.remove(name);
        }
    }

    /// The object is gone. What ran on its host may still be there.
    fn force_delete(&mut self, name: &str) {
        if let Some(host) = self.host_of(name) {
            self.last_use.remove(&host);
        }
        self.scene.cluster.remove(name);
    }

    fn host_of(&self, name: &str) -> Option<HostId> {
        self.scene.cluster.with(|records| {
            records.iter().find(|record| record.machine.name == name).and_then(|record| record.host.clone())
        })
    }

    fn held(&self) -> Vec<HostId> {
        self.scene.cluster.with(|records| records.iter().filter_map(|record| record.host.clone()).collect())
    }

    fn decide(&self, name: &str) -> Decided {
        let record = self
            .scene
            .cluster
            .with(|records| records.iter().find(|record| record.machine.name == name).cloned().unwrap());
        let known = Known {
            is_deleting: self.deleting.contains(name),
            is_paused: self.paused.contains(name),
            has_failed: self.failed.contains(name),
        };
        next_step(&record, known, self.is_cluster_paused)
    }

    /// One pass of the reconciler: what to record, if anything.
    async fn pass(&self, name: &str) -> Option<Record> {
        let to = match self.decide(name) {
            Decided::Claim(_) => {
                let is_paused = self.is_cluster_paused || self.paused.contains(name);
                assert!(!is_paused, "{name} is paused and claims a host");
                return self.leader.claim(&request(name)).await.ok().map(|host| Record::Host(host.id));
            }
            Decided::Delete => Destination::Pool,
            Decided::Quarantine => Destination::Quarantine,
            _ => return None,
        };
        let Some(host) = self.host_of(name) else { return Some(Record::Deleted) };
        match (self.leader.release(&held(name, &host), to).await, to) {
            (Ok(outcome), Destination::Quarantine) => {
                let is_lost = matches!(outcome, ReleaseOutcome::NotOurs { .. });
                Some(Record::GivenUp(is_lost.then_some(host)))
            }
            (Ok(ReleaseOutcome::NotOurs { .. }), Destination::Pool) => Some(Record::Lost(host)),
            (Ok(_), Destination::Pool) => Some(Record::Deleted),
            (Err(_), _) => None,
        }
    }

    /// An operator hands the hosts in quarantine back, and takes care of what is on them.
    fn hand_back(&mut self) {
        for host in self.hosts() {
            if HostName::of(&host.name, &prefix()) == HostName::Quarantined {
                self.scene.server(&host.id, |server| server.name = prefix().new_name());
                self.last_use.remove(&host.id);
            }
        }
    }

    fn record(&mut self, name: &str, record: Record) {
        match record {
            Record::GivenUp(lost) => {
                if let Some(host) = lost {
                    self.last_use.remove(&host);
                }
                self.scene.cluster.record(name, None);
                self.failed.remove(name);
            }
            Record::Deleted => self.scene.cluster.remove(name),
            Record::Lost(host) => {
                self.last_use.remove(&host);
                self.scene.cluster.remove(name);
            }
            Record::Host(host) => {
                self.scene.cluster.record(name, Some(&host));
                let installs = self.scene.server(&host, |server| server.installs);
                if let Some((before, used)) = self.last_use.get(&host) {
                    assert!(before == name || *used < installs, "{name} got {host} as {before} had left it");
                }
            }
        }
    }

    /// A machine uses its host as soon as it is ready, unless the machine is being deleted: then nothing is installed on the host any more,
    /// also after the host was wiped.
    fn note_uses(&mut self) {
        let records = self.scene.cluster.with(|records| records.clone());
        for MachineRecord { machine, host, .. } in records {
            let Some(host) = host.filter(|_| !self.deleting.contains(&machine.name)) else { continue };
            let (status, installs) = self.scene.server(&host, |server| (server.status, server.installs));
            if status == Status::Ready {
                self.last_use.insert(host, (machine.name, installs));
            }
        }
    }

    fn is_there(&self, name: &str) -> bool {
        self.scene.cluster.with(|records| records.iter().any(|record| record.machine.name == name))
    }

    fn reconcile(&mut self, name: &str, death: Death) {
        if !self.is_there(name) {
            return;
        }
        let record = self.runtime.block_on(until_death(&self.scene, death, self.pass(name)));
        if let (Some(Some(record)), false) = (record, matches!(death, Death::BeforeRecord)) {
            self.record(name, record);
        }
        self.bury(death);
    }

    /// A process that died is followed by one that remembers nothing.
    fn bury(&mut self, death: Death) {
        if !matches!(death, Death::Not) {
            self.leader = self.scene.pool();
        }
    }

    fn reclaim(&mut self, active: bool, death: Death) {
        let settings = ReclaimSettings {
            prefix: prefix(),
            zones: vec![zone()],
            claim_name_prefix: active.then(|| GATE.to_owned()),
        };
        let machines = Arc::clone(&self.scene.cluster) as Arc<dyn Machines>;
        let pool = Arc::clone(&self.leader) as Arc<dyn Pool>;
        let reclaimer = Reclaimer::new(pool, machines, settings, ReclaimMetrics::default());
        let writes = self.scene.writes();
        let _ = self.runtime.block_on(until_death(&self.scene, death, reclaimer.cycle()));
        assert!(active || self.scene.writes() == writes, "something was written by a look that only reports");
        self.bury(death);
    }

    fn check(&self) {
        let held = self.held();
        let distinct: BTreeSet<&HostId> = held.iter().collect();
        assert_eq!(distinct.len(), held.len(), "a host is had twice: {held:?}");
        for (id, name) in &self.outside {
            assert_eq!(self.scene.name(id), *name);
            assert!(!held.contains(id), "{name} was adopted");
        }
        for write in self.scene.scaleway.world().writes() {
            assert!(self.outside.keys().all(|id| id.as_str() != write.server), "{write:?}");
        }
        // Every other host is had, free, or counted.
        let settings =
            ReclaimSettings { prefix: prefix(), zones: vec![], claim_name_prefix: Some(GATE.to_owned()) };
        let records = self.scene.cluster.with(|records| records.clone());
        for host in self.hosts() {
            assert_ne!(standing(&host, &settings, &records), Standing::Foreign, "{host:?} is lost");
        }
    }

    /// The hosts that were in the pool at the beginning.
    fn hosts(&self) -> Vec<ListedHost> {
        let mut world = self.scene.scaleway.world();
        let all = world
            .servers()
            .iter()
            .map(|server| ListedHost { id: HostId::parse(&server.id).unwrap(), name: server.name.clone() });
        all.filter(|host| !self.outside.contains_key(&host.id)).collect()
    }

    /// Everything calms down: each machine that is wanted gets a host, and all other hosts become free.
    fn calm_down(&mut self, wanted: &Wanted) {
        self.scene.scaleway.world().deliver_held();
        self.scene.scaleway.world().clear_rules();
        self.paused.clear();
        self.is_cluster_paused = false;
        self.leader = self.scene.pool();
        for _ in 0..8 {
            self.hand_back();
            for machine in 0..MACHINES {
                // As a MachineSet does it once the old object is gone.
                if wanted.machines.contains_key(&machine) {
                    self.add(&name(machine));
                }
                self.reconcile(&name(machine), Death::Not);
                self.note_uses();
                self.check();
            }
            self.reclaim(true, Death::Not);
            self.check();
            self.scene.scaleway.world().finish_changes();
            self.note_uses();
        }
        for machine in wanted.machines.keys() {
            assert!(self.host_of(&name(*machine)).is_some(), "{} has no host", name(*machine));
        }
        assert_eq!(self.held().len(), wanted.machines.len());
        for host in self.hosts() {
            let is_free = matches!(HostName::of(&host.name, &prefix()), HostName::Free | HostName::Pending);
            assert!(is_free || self.held().contains(&host.id), "{host:?} is lost");
        }
    }
}

/// What a pass of the reconciler ends with.
enum Record {
    /// The machine has this host.
    Host(HostId),
    /// The machine has no host any more. This one bore a name of no machine, and what ran on it may still be there.
    GivenUp(Option<HostId>),
    /// The machine is gone.
    Deleted,
    /// The machine is gone, and its host bore a name of no machine. What ran on it may still be there.
    Lost(HostId),
}

/// Runs something in a process that may die: `None` if it did. A call that is under way is carried out by the simulator when it says so.
async fn until_death<T>(scene: &Scene, death: Death, work: impl Future<Output = T>) -> Option<T> {
    let before = scene.scaleway.world().total();
    let arrived = |calls: u8| async move {
        while scene.scaleway.world().total() - before < usize::from(calls) {
            tokio::task::yield_now().await;
        }
    };
    let dies = async {
        match death {
            Death::Not | Death::BeforeRecord => std::future::pending().await,
            Death::AtCall(call) => arrived(call).await,
            Death::WithCallUnderway(call) => {
                arrived(call - 1).await;
                scene.fault("update-server 1 hold");
                arrived(call).await;
            }
        }
    };
    tokio::select! {
        biased;
        () = dies => None,
        done = work => Some(done),
    }
}

struct Model;

impl StateMachineTest for Model {
    type SystemUnderTest = Fleet;
    type Reference = Reference;

    fn init_test(wanted: &Wanted) -> Fleet {
        Fleet::new(wanted.renames_while_changing)
    }

    fn apply(mut fleet: Fleet, _: &Wanted, step: Step) -> Fleet {
        match step {
            Step::Add(machine) => fleet.add(&name(machine)),
            Step::Delete(machine) => {
                fleet.deleting.insert(name(machine));
            }
            Step::ForceDelete(machine) => fleet.force_delete(&name(machine)),
            Step::Fail(machine) => {
                if fleet.host_of(&name(machine)).is_some() {
                    fleet.failed.insert(name(machine));
                }
            }
            Step::PauseCluster(is_paused) => fleet.is_cluster_paused = is_paused,
            Step::HandBack => fleet.hand_back(),
            Step::SetPaused(machine, true) => {
                fleet.paused.insert(name(machine));
            }
            Step::SetPaused(machine, false) => {
                fleet.paused.remove(&name(machine));
            }
            Step::Reconcile(machine, death) => fleet.reconcile(&name(machine), death),
            Step::ReconcileBoth(one, two) if one != two => {
                let (one, two) = (name(one), name(two));
                if fleet.is_there(&one) && fleet.is_there(&two) {
                    let both = async { tokio::join!(fleet.pass(&one), fleet.pass(&two)) };
                    let (first, second) = fleet.runtime.block_on(both);
                    for (name, record) in [(&one, first), (&two, second)] {
                        if let Some(record) = record {
                            fleet.record(name, record);
                        }
                    }
                }
            }
            Step::ReconcileBoth(..) => {}
            Step::Reclaim { active, death } => fleet.reclaim(active, death),
            Step::ChangeLeader => fleet.leader = fleet.scene.pool(),
            Step::Fault(fault) => fleet.scene.fault(FAULTS[fault]),
            Step::ApiServerFails => {
                let mut lists = 0;
                fleet.scene.cluster.on_list(move |_| {
                    lists += 1;
                    lists > 1
                });
            }
            Step::LateCallsArrive => {
                fleet.scene.scaleway.world().deliver_held();
            }
            Step::InstallationsEnd => fleet.scene.scaleway.world().finish_changes(),
        }
        fleet.note_uses();
        fleet
    }

    fn check_invariants(fleet: &Fleet, _: &Wanted) {
        fleet.check();
    }

    fn teardown(mut fleet: Fleet, wanted: Wanted) {
        fleet.calm_down(&wanted);
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_host_is_had_twice_and_none_is_lost(sequential 1..40 => Model);
}
