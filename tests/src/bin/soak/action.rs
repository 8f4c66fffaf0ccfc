//! What may happen to a world in one step.

use fastrand::Rng;
use tart_kubelet_tests::mac::Fault;

use super::pod_kind::PodKind;

/// One step. Where it names a Pod or a VM, a number chooses among those that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Create(PodKind),
    Delete {
        which: usize,
        at_once: bool,
    },
    KillAgent,
    RestartAgent,
    KillShim(usize),
    KillTart(usize),
    /// The Mac's agent and shims stand still until [`Action::Thaw`].
    Freeze,
    Thaw,
    /// The wall clock of the Mac is so many seconds ahead of the true time.
    SetClock(i64),
    Api(ApiPath),
    FaultComes(MacFault),
    FaultGoes,
    PowerLoss,
    CreateForeignVm,
    Cordon(bool),
    /// Nothing happens for a moment.
    Wait,
}

/// The way to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiPath {
    Open,
    Blocked,
    Severed,
    /// Connections die without a word.
    Forgotten,
    Slow,
}

/// A fault of the whole Mac.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MacFault {
    /// The user is logged out: no VM starts.
    LoggedOut,
    /// tart is so.
    Tart(Fault, &'static str),
}

impl MacFault {
    /// Whether VMs start all the same, so that neither Pods nor the Node may notice it: it only makes tart slow.
    pub(crate) fn is_harmless(self) -> bool {
        matches!(self, Self::Tart(Fault::Latency | Fault::BootDelay | Fault::AgentDelay | Fault::Garbage, _))
    }
}

const MAC_FAULTS: [MacFault; 10] = [
    MacFault::LoggedOut,
    MacFault::Tart(Fault::Latency, "150ms"),
    MacFault::Tart(Fault::BootDelay, "1s"),
    MacFault::Tart(Fault::AgentDelay, "1s"),
    MacFault::Tart(Fault::Hang, "list get ip"),
    MacFault::Tart(Fault::Garbage, "list"),
    MacFault::Tart(Fault::NoSpace, "clone run"),
    MacFault::Tart(Fault::StallCopy, ""),
    MacFault::Tart(Fault::DhcpExhausted, ""),
    MacFault::Tart(Fault::Pull, "503"),
];

const HOUR: i64 = 3600;
const CLOCKS: [i64; 7] = [0, 30, -30, HOUR, -HOUR, 2 * HOUR, 8 * HOUR];
const API_PATHS: [ApiPath; 4] = [ApiPath::Blocked, ApiPath::Severed, ApiPath::Forgotten, ApiPath::Slow];

impl Action {
    /// The action of a step depends on the seed, the world and the step alone, so that a run can be repeated.
    pub(crate) fn random(random: &mut Rng) -> Self {
        match random.u8(..100) {
            0..38 => Self::Create(PodKind::random(random)),
            38..46 => Self::Delete { which: random.usize(..), at_once: random.u8(..4) == 0 },
            46..50 => Self::KillAgent,
            50..56 => Self::RestartAgent,
            56..60 => Self::KillShim(random.usize(..)),
            60..64 => Self::KillTart(random.usize(..)),
            64..67 => Self::Freeze,
            67..71 => Self::Thaw,
            71..77 => Self::SetClock(CLOCKS[random.usize(..CLOCKS.len())]),
            77..80 => Self::Api(API_PATHS[random.usize(..API_PATHS.len())]),
            80..86 => Self::Api(ApiPath::Open),
            86..89 => Self::FaultComes(MAC_FAULTS[random.usize(..MAC_FAULTS.len())]),
            89..93 => Self::FaultGoes,
            93 => Self::PowerLoss,
            94..96 => Self::CreateForeignVm,
            96 => Self::Cordon(random.bool()),
            _ => Self::Wait,
        }
    }
}
