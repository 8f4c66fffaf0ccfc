//! `node_exporter`, which serves the Mac's metrics.

use super::{PROGRAMS, argv, daemon, label, leftovers};
use crate::artifact::Artifact;
use crate::host::part::{Binary, JobPart, Part, Removed};

const NAME: &str = "node_exporter";
const LABEL: &str = "dev.tuist.node-exporter";
const PLIST: &str = "/Library/LaunchDaemons/dev.tuist.node-exporter.plist";
const LOG: &str = "/var/log/tart-node-exporter.log";
/// What `node_exporter` can measure on macOS without a C library of its own.
const COLLECTORS: [&str; 9] =
    ["cpu", "diskstats", "filesystem", "loadavg", "meminfo", "netdev", "os", "time", "uname"];

/// The exporter of a Mac's metrics.
#[derive(Debug, Clone)]
pub(crate) struct NodeExporter {
    /// Its program.
    pub(crate) program: Artifact,
    /// Where it listens.
    pub(crate) listen: String,
}

/// The exporter, or that there is none.
pub(super) fn parts(config: Option<&NodeExporter>) -> Vec<Part> {
    let label = label(LABEL);
    let Some(NodeExporter { program, listen }) = config else {
        let files = argv(&[PLIST, "/usr/local/bin/node_exporter", LOG]);
        return vec![Part::Removed(Removed {
            label,
            files,
            only_if_noted: NAME.to_owned(),
            programs: Vec::new(),
            leftovers: leftovers(&[NAME]),
            farewell: Vec::new(),
            carries_tailnet: false,
        })];
    };
    let binary = Binary {
        name: NAME.to_owned(),
        directory: PROGRAMS.to_owned(),
        artifact: program.clone(),
        has_job: true,
    };
    let collectors = COLLECTORS.iter().map(|name| format!("--collector.{name}"));
    let flags = [format!("--web.listen-address={listen}"), "--collector.disable-defaults".to_owned()];
    let arguments = std::iter::once(binary.path()).chain(flags).chain(collectors).collect();
    let job = JobPart {
        job: daemon(label, arguments, LOG),
        plist: PLIST.to_owned(),
        restart_for: program.sha256().clone(),
        previous: Some(binary.previous()),
        carries_tailnet: false,
    };
    vec![Part::Binary(binary), Part::Job(job)]
}
