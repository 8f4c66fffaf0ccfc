//! The script that keeps the rules loaded, and the job that runs it.

use launchd::{Job, Label, ProcessType};

use super::{ANCHOR, LABEL, LOADER, RULES_FILE};

/// The script, but for what it is about.
const TEMPLATE: &str = include_str!("loader.sh");

/// Where the script keeps the token of its reference and what it has loaded. macOS empties `/var/run` at boot.
const STATE: &str = "/var/run/tart-kubelet-firewall";
/// A copy of the rules that the script has loaded.
pub(super) const LOADED: &str = "/var/run/tart-kubelet-firewall/loaded";
/// Why the script has failed.
pub(super) const ERROR: &str = "/var/run/tart-kubelet-firewall/error";
/// What the job prints.
const LOG: &str = "/var/log/tart-kubelet-firewall.log";
/// Anything may flush the rules; the script loads them again after so many seconds.
const INTERVAL: u32 = 60;
const EXIT_TIME_OUT: u32 = 20;

/// The script.
pub(super) fn script() -> String {
    TEMPLATE.replace("@ANCHOR@", ANCHOR).replace("@RULES@", RULES_FILE).replace("@STATE@", STATE)
}

/// The job that runs the script at boot and every minute. It is root's, as pf is.
pub(super) fn job() -> Job {
    Job {
        label: label(),
        program_arguments: vec!["/bin/sh".into(), LOADER.into()],
        user_name: None,
        environment_variables: [("PATH".to_owned(), "/usr/bin:/bin:/usr/sbin:/sbin".to_owned())].into(),
        run_at_load: true,
        keep_alive: false,
        start_interval: Some(INTERVAL),
        throttle_interval: None,
        exit_time_out: EXIT_TIME_OUT,
        abandon_process_group: false,
        process_type: ProcessType::Standard,
        standard_out_path: Some(LOG.into()),
        standard_error_path: Some(LOG.into()),
        soft_resource_limits: None,
        hard_resource_limits: None,
        umask: None,
    }
}

/// The label of the job.
pub(super) fn label() -> Label {
    #[expect(clippy::expect_used, reason = "the constant is a label, and a test says so")]
    LABEL.parse().expect("a label")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_runs_the_script_at_boot_and_every_minute() {
        let plist = String::from_utf8(job().to_plist().unwrap()).unwrap();
        assert!(plist.contains("<key>RunAtLoad</key>\n\t<true/>"), "{plist}");
        assert!(plist.contains("<key>StartInterval</key>\n\t<integer>60</integer>"), "{plist}");
    }

    #[test]
    fn the_script_never_loads_the_main_ruleset() {
        let script = script();
        assert!(!script.contains('@'), "{script}");
        for line in script.lines().filter(|line| line.contains("pfctl") && line.contains("-f ")) {
            assert!(line.contains("pfctl -a \"$anchor\" -f"), "{line}");
        }
    }
}
