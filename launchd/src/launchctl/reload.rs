//! A job that launchd forgets and loads again from its property list, in one call: a connection to the Mac that is lost in between leaves
//! no Mac without the job.

use std::time::Duration;

use super::{CHANGE_DEADLINE, ExitCode, LAUNCHCTL, Launchctl, LaunchctlError, POLL};
use crate::host::{Call, Host};
use crate::label::Label;

/// Ends a job and loads it again. The words are `launchctl`, the domain, the job, its property list, and how often launchd is asked. The
/// last line says which command ended it, and the exit code is that command's. No signal ends it half way: sshd's child outlives the
/// connection, and its output may have no reader any more.
const SCRIPT: &str = "trap '' HUP INT PIPE TERM
launchctl=$1 domain=$2 job=$3 plist=$4 tries=$5
\"$launchctl\" bootout \"$job\"
code=$?
case $code in 0 | 3 | 36 | 113) ;; *) echo bootout; exit \"$code\" ;; esac
left=$tries
while \"$launchctl\" print \"$job\" >/dev/null 2>&1; [ $? -ne 113 ]; do
  left=$((left - 1))
  [ \"$left\" -gt 0 ] || { echo print; exit 1; }
  sleep 0.5
done
left=$tries
while \"$launchctl\" bootstrap \"$domain\" \"$plist\"; code=$?; [ \"$code\" -ne 0 ]; do
  case $code in 5 | 17 | 36 | 37) ;; *) break ;; esac
  left=$((left - 1))
  [ \"$left\" -gt 0 ] || break
  \"$launchctl\" print \"$job\" >/dev/null 2>&1 && break
  sleep 0.5
done
echo bootstrap
exit \"$code\"";

/// What became of a job that was to be loaded again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reloaded {
    /// launchd has loaded it from its property list.
    Loaded,
    /// The old one does not end.
    StillLoaded,
    /// launchd does not load it.
    Refused(ExitCode),
}

/// How long [`Launchctl::reload`] may take. Each question takes launchd a moment.
pub(crate) fn reload_deadline(patience: Duration) -> Duration {
    patience * 4 + CHANGE_DEADLINE * 2
}

impl<H: Host> Launchctl<'_, H> {
    /// Has launchd forget a job, waits until it is gone, and loads it from its property list. Both may take as long as `patience`. A job
    /// that is not loaded is only loaded. The Mac does all of it even if the caller is lost.
    pub async fn reload(
        &self,
        label: &Label,
        plist: &str,
        patience: Duration,
    ) -> Result<Reloaded, LaunchctlError> {
        let (domain, job) = (self.domain.to_string(), self.target(label));
        let tries = (patience.as_millis() / POLL.as_millis()).max(1).to_string();
        let argv = ["/bin/sh", "-c", SCRIPT, "sh", LAUNCHCTL, &domain, &job, plist, &tries];
        let output = self.host.run(Call::new(&argv, reload_deadline(patience))).await?;
        let code = ExitCode::from(output.code);
        match output.stdout.lines().last() {
            Some("bootstrap") if code == ExitCode::Success => Ok(Reloaded::Loaded),
            Some("bootstrap") => Ok(Reloaded::Refused(code)),
            Some("print") => Ok(Reloaded::StillLoaded),
            _ => {
                let command = format!("bootout {job}");
                Err(LaunchctlError::Failed { command, code, message: output.message() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Output, Stdio};

    use super::*;

    /// A `launchctl` whose state is in files: the job is loaded while `loaded` is there, and `gone` says how many questions come before it
    /// is gone. `busy` says how many times `bootstrap` fails, and `code` how.
    const FAKE: &str = "#!/bin/sh
cd \"$(dirname \"$0\")\" || exit 99
echo \"$*\" >>calls
count() { n=$(cat \"$1\"); [ \"$n\" -gt 0 ] && echo $((n - 1)) >\"$1\"; }
case $1 in
  bootout) [ -e refuses ] && exit 1; [ -e loaded ] || exit 3; exit 0 ;;
  print) [ -e loaded ] || exit 113; count gone || { rm loaded; exit 113; }; exit 0 ;;
  bootstrap) count busy && exit \"$(cat code)\"; touch loaded; exit 0 ;;
esac";

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new(gone: u32, busy: u32, code: u8) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let fake = Self(directory);
            for (name, text) in [
                ("launchctl", FAKE.to_owned()),
                ("loaded", String::new()),
                ("gone", gone.to_string()),
                ("busy", busy.to_string()),
                ("code", code.to_string()),
            ] {
                std::fs::write(fake.path(name), text).unwrap();
            }
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(fake.path("launchctl"), executable).unwrap();
            fake
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.0.path().join(name)
        }

        fn command(&self, tries: u32) -> Command {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", SCRIPT, "sh"]).arg(self.path("launchctl"));
            command.args(["system", "system/a", "/a.plist", &tries.to_string()]);
            command
        }

        fn run(&self, tries: u32) -> (i32, String) {
            let Output { status, stdout, .. } = self.command(tries).output().unwrap();
            (status.code().unwrap(), String::from_utf8(stdout).unwrap())
        }

        fn changes(&self) -> Vec<String> {
            let calls = std::fs::read_to_string(self.path("calls")).unwrap();
            calls.lines().filter(|call| !call.starts_with("print")).map(str::to_owned).collect()
        }

        fn is_loaded(&self) -> bool {
            Path::exists(&self.path("loaded"))
        }
    }

    const DONE: [&str; 2] = ["bootout system/a", "bootstrap system /a.plist"];

    #[test]
    fn a_job_is_loaded_again_when_the_old_one_is_gone() {
        let fake = Fake::new(1, 0, 5);
        assert_eq!(fake.run(9), (0, "bootstrap\n".to_owned()));
        assert!(fake.is_loaded());
        assert_eq!(fake.changes(), DONE);
    }

    #[test]
    fn a_job_that_is_not_loaded_is_only_loaded() {
        let fake = Fake::new(0, 0, 5);
        std::fs::remove_file(fake.path("loaded")).unwrap();
        assert_eq!(fake.run(9), (0, "bootstrap\n".to_owned()));
    }

    #[test]
    fn a_bootstrap_that_comes_too_early_is_tried_again_and_another_failure_is_told() {
        for code in [5, 17, 36, 37] {
            let fake = Fake::new(0, 2, code);
            assert_eq!(fake.run(9), (0, "bootstrap\n".to_owned()), "{code}");
            assert_eq!(fake.changes().len(), 4, "{code}");
        }
        assert_eq!(Fake::new(0, 9, 5).run(2), (5, "bootstrap\n".to_owned()));
        let refused = Fake::new(0, 9, 109);
        assert_eq!((refused.run(9), refused.changes().len()), ((109, "bootstrap\n".to_owned()), 2));
    }

    #[test]
    fn a_job_that_does_not_end_and_one_that_may_not_be_ended_are_not_loaded() {
        let fake = Fake::new(99, 0, 5);
        assert_eq!(fake.run(2), (1, "print\n".to_owned()));
        assert_eq!(fake.changes(), DONE[..1]);
        let refuses = Fake::new(0, 0, 5);
        std::fs::write(refuses.path("refuses"), "").unwrap();
        assert_eq!(refuses.run(2), (1, "bootout\n".to_owned()));
    }

    #[test]
    fn a_job_is_loaded_again_although_the_caller_is_gone() {
        let fake = Fake::new(1, 1, 5);
        let mut child = fake.command(9).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // As when a connection is lost: its output has no reader, and it is told to end.
        drop((child.stdout.take(), child.stderr.take()));
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        while !fake.path("calls").exists() {
            std::thread::yield_now();
        }
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
        child.wait().unwrap();
        assert!(fake.is_loaded());
    }

    /// The script has the codes that the rest of the crate knows.
    #[test]
    fn the_script_has_the_codes_of_the_enum() {
        let list = |is: fn(ExitCode) -> bool| {
            let numbers = (0..256).filter(|&number| is(ExitCode::from(number)));
            numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(" | ")
        };
        assert!(SCRIPT.contains(&format!("in {}) ", list(ExitCode::is_booted_out))));
        assert!(SCRIPT.contains(&format!("in {}) ", list(ExitCode::is_bootstrap_retried))));
    }
}
