//! tailscale: the Mac's place in a tailnet.

use std::net::IpAddr;
use std::time::Duration;

use launchd::{Call, Owner};

use super::{PROGRAMS, argv, daemon, label, leftovers};
use crate::artifact::Artifact;
use crate::host::Remote;
use crate::host::part::{Binary, Contents, Directory, File, JobPart, Part, Removed, Tailnet, tailnet_note};

const LABEL: &str = "com.tailscale.tailscaled";
const PLIST: &str = "/Library/LaunchDaemons/com.tailscale.tailscaled.plist";
const STATE: &str = "/var/lib/tailscale";
const LOG: &str = "/var/log/tailscaled.log";
/// macOS asks the tailnet's own name server for its names. tailscaled without its app does not tell macOS so.
const RESOLVER: &str = "/etc/resolver/ts.net";

/// How long tailscale may take to say the Mac's address.
const ADDRESS_DEADLINE: Duration = Duration::from_secs(30);

/// tailscale, as it is built for the command line. The key with which a Mac joins is an input of the step, and kept nowhere.
#[derive(Debug, Clone)]
#[expect(clippy::struct_field_names, reason = "the programs have these names")]
pub(crate) struct Tailscale {
    /// The program `tailscale`.
    pub(crate) tailscale: Artifact,
    /// The program `tailscaled`.
    pub(crate) tailscaled: Artifact,
    /// Tags of the Mac in the tailnet.
    pub(crate) tags: Vec<String>,
    /// Whether the Mac uses the routes that others offer.
    pub(crate) accept_routes: bool,
}

/// The address of a Mac in its tailnet; `None` while it has none.
pub(crate) async fn tailnet_address<R: Remote>(mac: &R) -> Option<IpAddr> {
    let program = format!("{PROGRAMS}/tailscale");
    let output = mac.run(Call::new(&[&program, "ip", "-4"], ADDRESS_DEADLINE)).await.ok()?;
    output.is_success().then(|| output.stdout.lines().next()?.trim().parse().ok()).flatten()
}

/// tailscale, or that there is none. A tailscale that the provider has not installed stays.
pub(super) fn parts(config: Option<&Tailscale>, host_name: &str) -> Vec<Part> {
    let label = label(LABEL);
    let binary = |name: &str, artifact: &Artifact, has_job| Binary {
        name: name.to_owned(),
        directory: PROGRAMS.to_owned(),
        artifact: artifact.clone(),
        has_job,
    };
    let program = format!("{PROGRAMS}/tailscale");
    let Some(Tailscale { tailscale, tailscaled, tags, accept_routes }) = config else {
        return vec![Part::Removed(Removed {
            label,
            files: argv(&[PLIST, &format!("{PROGRAMS}/tailscaled"), STATE, LOG, RESOLVER]),
            only_if_noted: "tailscaled".to_owned(),
            // It says farewell, and is removed after that.
            programs: vec![("tailscale".to_owned(), program.clone())],
            leftovers: leftovers(&["tailscale", "tailscaled"]).into_iter().chain([tailnet_note()]).collect(),
            farewell: argv(&[&program, "logout"]),
            carries_tailnet: true,
        })];
    };
    let daemon_binary = binary("tailscaled", tailscaled, true);
    let arguments = argv(&[
        &daemon_binary.path(),
        "--state=/var/lib/tailscale/tailscaled.state",
        "--socket=/var/run/tailscaled.socket",
        "--port=41641",
    ]);
    let job = JobPart {
        // `tailscaled install-system-daemon` writes a job without flags, which ends at once and says nothing.
        job: daemon(label, arguments, LOG),
        plist: PLIST.to_owned(),
        restart_for: tailscaled.sha256().clone(),
        previous: Some(daemon_binary.previous()),
        carries_tailnet: true,
    };
    let resolver = File {
        path: RESOLVER.to_owned(),
        contents: Contents::Text("nameserver 100.100.100.100\n".to_owned()),
        owner: Owner::Root,
        mode: 0o644,
    };
    let tailnet = Tailnet {
        program,
        // A name in a tailnet is one label.
        host_name: host_name.replace('.', "-"),
        tags: tags.clone(),
        accept_routes: *accept_routes,
    };
    vec![
        Part::Binary(binary("tailscale", tailscale, false)),
        Part::Binary(daemon_binary),
        // After the program, by whose note all of it goes when it is switched off.
        Part::Directory(Directory { path: STATE.to_owned(), owner: Owner::Root, mode: 0o700 }),
        Part::Job(job),
        Part::Tailnet(tailnet),
        Part::File(resolver),
    ]
}
