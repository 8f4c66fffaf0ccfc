//! The kinds of Pods that worlds are made of.

use std::path::Path;

use fastrand::Rng;
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;

/// The images that do what they should.
pub(crate) const GOOD_IMAGES: [&str; 2] = ["registry.test/macos/sequoia:15", "registry.test/macos/tahoe:26"];
/// The one image of the tenant who means harm. One image must not take a Mac out of service, whatever its guests do.
pub(crate) const HOSTILE_IMAGE: &str = "registry.test/hostile/image:1";
/// An image that turns its guest off while it boots.
pub(crate) const HALTING_IMAGE: &str = "registry.test/hostile/halts:1";
/// No registry has it.
const ABSENT_IMAGE: &str = "registry.test/macos/absent:1";
/// The repository whose registry serves another disk than the manifest names.
pub(crate) const ALTERED_REPOSITORY: &str = "registry.test/hostile/altered";
/// The repository whose registry answers with its only image, whatever digest it is asked for.
pub(crate) const WRONG_REPOSITORY: &str = "registry.test/hostile/wrong";
/// The number of CPUs by which a VM of an image with other content than its digest says is known. No other image has it.
pub(crate) const FORGED_CPUS: u32 = 13;

/// What a Pod is meant to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodKind {
    /// A command that ends with an exit code, once.
    Job { code: i32 },
    /// A command that fails the first time and succeeds the second time; its Pod restarts it.
    Retry,
    /// A VM without a command.
    BootOnly,
    /// A Pod whose image cannot be used.
    BadImage(ImageFlaw),
    /// A Pod whose guest, or whose VM, does harm.
    Hostile(Hostility),
}

/// Why a Pod never gets its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageFlaw {
    /// No registry has it.
    Absent,
    /// Its disk is not what its manifest says.
    AlteredDisk,
    /// It is asked for by digest, and the registry answers with another one.
    WrongManifest,
}

/// What a hostile guest does, or makes tart do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hostility {
    /// The guest turns itself off while it boots.
    Halts,
    /// The guest leaves many processes behind, floods its log, and ends with a code.
    Floods,
    /// tart reports the error for this VM, or does this to it.
    Fault(Fault),
}

/// What can be wrong with one VM. Some look like a fault of the whole Mac.
const VM_FAULTS: [Fault; 9] = [
    Fault::VzInternal,
    Fault::VzHostKey,
    Fault::VzAuxiliaryStorage,
    Fault::GuestPanic,
    Fault::AgentGarbage,
    Fault::AgentDown,
    Fault::AgentStall,
    Fault::SigintHang,
    Fault::DhcpExhausted,
];

const CODES: [i32; 5] = [0, 0, 3, 7, 42];

impl PodKind {
    pub(crate) fn random(random: &mut Rng) -> Self {
        match random.u8(..10) {
            0..5 => Self::Job { code: CODES[random.usize(..CODES.len())] },
            5 => Self::Retry,
            6 | 7 => Self::BootOnly,
            8 => Self::BadImage(match random.u8(..3) {
                0 => ImageFlaw::Absent,
                1 => ImageFlaw::AlteredDisk,
                _ => ImageFlaw::WrongManifest,
            }),
            _ => Self::Hostile(match random.u8(..4) {
                0 => Hostility::Halts,
                1 => Hostility::Floods,
                _ => Hostility::Fault(VM_FAULTS[random.usize(..VM_FAULTS.len())]),
            }),
        }
    }

    /// Whether a Pod of this kind may end in any way.
    pub(crate) fn is_hostile(self) -> bool {
        matches!(self, Self::Hostile(_))
    }

    fn image(self, random: &mut Rng) -> String {
        let image = match self {
            Self::BadImage(ImageFlaw::Absent) => ABSENT_IMAGE,
            Self::BadImage(ImageFlaw::AlteredDisk) => return format!("{ALTERED_REPOSITORY}:1"),
            Self::BadImage(ImageFlaw::WrongManifest) => {
                return format!("{WRONG_REPOSITORY}@sha256:{}", "0".repeat(64));
            }
            Self::Hostile(Hostility::Halts) => HALTING_IMAGE,
            Self::Hostile(_) => HOSTILE_IMAGE,
            Self::Job { .. } | Self::Retry | Self::BootOnly => GOOD_IMAGES[random.usize(..GOOD_IMAGES.len())],
        };
        image.to_owned()
    }

    /// The command writes down that it begins and that it ends. The host reads it in a directory that only this Pod has.
    fn script(self, random: &mut Rng) -> Option<String> {
        let pause = f64::from(random.u8(..20)) / 10.0;
        let log = "/private/tmp/evidence/log";
        let ends = |code: i32| format!("echo end {code} >>{log}; exit {code}");
        let begin = format!("echo begin >>{log}; sleep {pause}");
        match self {
            Self::Job { code } => Some(format!("{begin}; {}", ends(code))),
            Self::Retry => Some(format!(
                "{begin}; if [ $(grep -c begin {log}) -ge 2 ]; then {}; fi; {}",
                ends(0),
                ends(7)
            )),
            Self::Hostile(Hostility::Floods) => Some(format!(
                "{begin}; for i in 1 2 3; do (sleep 1000 &) ; done; head -c 4000000 /dev/zero; {}",
                ends(9)
            )),
            Self::BootOnly | Self::BadImage(_) | Self::Hostile(_) => None,
        }
    }

    /// The Pod, which no scheduler touches, with `evidence` for the directory that its guest writes to.
    pub(crate) fn manifest(self, name: &str, evidence: &Path, random: &mut Rng) -> Value {
        let mut container = json!({"name": "main", "image": self.image(random)});
        let mut volumes = json!([]);
        if let Some(script) = self.script(random) {
            container["command"] = json!(["/bin/sh", "-c", script]);
            container["volumeMounts"] = json!([{"name": "evidence", "mountPath": "/private/tmp/evidence"}]);
            volumes = json!([{"name": "evidence", "hostPath": {"path": evidence, "type": "Directory"}}]);
        }
        let policy = if self == Self::Retry { "OnFailure" } else { "Never" };
        json!({
            "metadata": {"name": name},
            "spec": {
                "schedulerName": "none",
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": random.u8(..3),
                "automountServiceAccountToken": false,
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
                "volumes": volumes,
            },
        })
    }
}
