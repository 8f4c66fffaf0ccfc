//! The job of the agent. The provider and `tart-kubelet install` make it here, so that both install the same.

use std::fmt::Write;

use crate::job::{Job, ProcessType, ResourceLimits};
use crate::label::Label;

/// The label of the agent's job.
pub const AGENT_LABEL: &str = "dev.tuist.tart-kubelet";
/// The agent's program.
pub const AGENT_BINARY: &str = "/usr/local/bin/tart-kubelet";
/// The property list of the agent's job.
pub const AGENT_PLIST: &str = "/Library/LaunchDaemons/dev.tuist.tart-kubelet.plist";
/// The agent's kubeconfig.
pub const AGENT_KUBECONFIG: &str = "/etc/tart-kubelet/kubeconfig";
/// The agent's state directory.
pub const AGENT_STATE_DIR: &str = "/var/lib/tart-kubelet";
/// The agent's log. It must be there before the job starts, with mode 0600 and owned by the console user, who cannot create it.
pub const AGENT_LOG: &str = "/var/log/tart-kubelet.log";
/// The pf anchor with the rules that keep VMs from private networks and from the Mac itself.
pub const VM_FIREWALL_ANCHOR: &str = "com.apple/850.tart-kubelet";
/// The file in which newsyslog finds [`newsyslog_entry`].
pub const AGENT_NEWSYSLOG: &str = "/etc/newsyslog.d/tart-kubelet.conf";

/// How long the agent may take to end. It ends within a second, but for downloads that it puts aside first.
const EXIT_TIME_OUT: u32 = 20;
/// The least number of seconds between two starts of the agent.
const THROTTLE_INTERVAL: u32 = 10;
/// Enough for two VMs, their logs and volumes, and the connections of `kubectl`. launchd's own default is 256.
const OPEN_FILES: u32 = 65_536;
/// Files of the agent are its own: its state has the Secrets of Pods.
const UMASK: u32 = 0o077;
/// The search path of the agent: Homebrew's directory for tart, `/usr/local/bin` for what the provider installs.
pub const AGENT_PATH: &str = "/usr/local/bin:/opt/homebrew/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// Rotate the log when it has so many KiB, and keep so many older ones.
const LOG_SIZE_KIB: u32 = 20_480;
const LOG_COUNT: u32 = 5;

/// The user that is logged in at the screen. macOS lets only that user start VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleUser {
    /// The user's name.
    pub name: String,
    /// The user's home directory.
    pub home: String,
}

impl ConsoleUser {
    /// A user with the usual home directory.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), home: format!("/Users/{name}") }
    }
}

/// The agent's job. It is a daemon of the system that runs as the console user: macOS asks daemons for no Local Network permission, and
/// loads them at boot.
pub fn agent_job(user: &ConsoleUser, flags: impl IntoIterator<Item = String>) -> Job {
    let log = Some(AGENT_LOG.to_owned());
    let limits = Some(ResourceLimits { number_of_files: OPEN_FILES });
    let variables =
        [("HOME", user.home.as_str()), ("LANG", "en_US.UTF-8"), ("PATH", AGENT_PATH), ("USER", &user.name)];
    Job {
        label: agent_label(),
        // launchd opens the log before the agent starts, and newsyslog renames it: the agent must know its name.
        program_arguments: [AGENT_BINARY.to_owned(), format!("--log-file={AGENT_LOG}")]
            .into_iter()
            .chain(flags)
            .collect(),
        user_name: Some(user.name.clone()),
        environment_variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        run_at_load: true,
        keep_alive: true,
        start_interval: None,
        throttle_interval: Some(THROTTLE_INTERVAL),
        exit_time_out: EXIT_TIME_OUT,
        abandon_process_group: true,
        process_type: ProcessType::Interactive,
        standard_out_path: log.clone(),
        standard_error_path: log,
        soft_resource_limits: limits,
        hard_resource_limits: limits,
        umask: Some(UMASK),
    }
}

fn agent_label() -> Label {
    #[expect(clippy::expect_used, reason = "the constant is a label, and a test says so")]
    AGENT_LABEL.parse().expect("a label")
}

/// The entry by which newsyslog rotates the agent's log, for [`AGENT_NEWSYSLOG`]. The agent opens its log anew by itself, so newsyslog
/// signals no process (`N`). Old logs are not compressed: the agent writes to the last one for some moments more.
pub fn newsyslog_entry(user: &ConsoleUser) -> String {
    let mut entry = "# logfilename [owner:group] mode count size when flags\n".to_owned();
    let _ = writeln!(entry, "{AGENT_LOG} {}:staff 600 {LOG_COUNT} {LOG_SIZE_KIB} * N", user.name);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_job_has_what_the_agent_needs() {
        let user = ConsoleUser::named("m1");
        let job = agent_job(&user, ["--node-name=mac-1".to_owned()]);
        assert_eq!(job.label.as_str(), AGENT_LABEL);
        assert_eq!(
            job.program_arguments,
            [AGENT_BINARY, "--log-file=/var/log/tart-kubelet.log", "--node-name=mac-1"]
        );
        let xml = String::from_utf8(job.to_plist().unwrap()).unwrap();
        for line in [
            "<key>UserName</key>\n\t<string>m1</string>",
            "<key>HOME</key>\n\t\t<string>/Users/m1</string>",
            "<key>RunAtLoad</key>\n\t<true/>",
            "<key>KeepAlive</key>\n\t<true/>",
            "<key>ThrottleInterval</key>\n\t<integer>10</integer>",
            "<key>ExitTimeOut</key>\n\t<integer>20</integer>",
            "<key>AbandonProcessGroup</key>\n\t<true/>",
            "<key>ProcessType</key>\n\t<string>Interactive</string>",
            "<key>StandardErrorPath</key>\n\t<string>/var/log/tart-kubelet.log</string>",
            "<key>NumberOfFiles</key>\n\t\t<integer>65536</integer>",
            "<key>Umask</key>\n\t<integer>63</integer>",
        ] {
            assert!(xml.contains(line), "{line} is missing in {xml}");
        }
    }

    #[test]
    fn newsyslog_makes_the_new_log_as_private_as_the_old_one() {
        let entry = newsyslog_entry(&ConsoleUser::named("m1"));
        assert_eq!(entry.lines().last().unwrap(), "/var/log/tart-kubelet.log m1:staff 600 5 20480 * N");
    }
}
