//! The roll against a scripted Mac, with tokio's clock stopped.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::*;
use crate::agent_job::{AGENT_BINARY, AGENT_PLIST, ConsoleUser, agent_job};
use crate::host::{CallOutput, HostError};
use crate::launchctl::ExitCode;

const PREVIOUS: &str = "/usr/local/bin/.tart-kubelet.previous";

/// How a program behaves under launchd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Lives,
    /// Ends after so many seconds, and launchd prints this about it.
    Ends(u64, &'static str),
    /// launchd never starts it.
    NeverSpawns,
}

#[derive(Debug)]
struct Loaded {
    job: Job,
    pid: Option<u32>,
    since: Instant,
    runs: u64,
    last: &'static str,
    /// When a job that is booted out is gone.
    gone: Option<Instant>,
}

#[derive(Debug)]
struct Model {
    files: BTreeMap<String, Vec<u8>>,
    programs: BTreeMap<String, Program>,
    loaded: Option<Loaded>,
    next_pid: u32,
    is_disabled: bool,
    /// How long a process takes to end.
    stop: Duration,
    /// What `bootstrap` says to a property list that has this text.
    refusal: Option<(&'static str, i32)>,
    /// `bootstrap` fails so many times with this code, as while the old job is still ending.
    busy: (u32, i32),
    /// `kickstart -k` does nothing.
    is_kickstart_idle: bool,
    /// launchd forgets a job so soon after it was loaded.
    forgets: bool,
    calls: Vec<String>,
}

struct ScriptedMac(Mutex<Model>);

fn job(flag: &str) -> Job {
    agent_job(&ConsoleUser::named("m1"), [flag.to_owned()])
}

impl ScriptedMac {
    /// A Mac with the binary and no job.
    fn new() -> Self {
        Self(Mutex::new(Model {
            files: BTreeMap::new(),
            programs: [(AGENT_BINARY.to_owned(), Program::Lives)].into(),
            loaded: None,
            next_pid: 100,
            is_disabled: false,
            stop: Duration::from_secs(3),
            refusal: None,
            busy: (0, 5),
            is_kickstart_idle: false,
            forgets: false,
            calls: Vec::new(),
        }))
    }

    /// A Mac on which the job with `flag` has been running for a while.
    async fn running(flag: &str) -> Self {
        let mac = Self::new();
        mac.roll(flag, false).await.unwrap();
        tokio::time::advance(Duration::from_mins(10)).await;
        mac.model().calls.clear();
        mac
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap()
    }

    fn pid(&self) -> Option<u32> {
        let mut model = self.model();
        model.tick();
        model.loaded.as_ref().and_then(|loaded| loaded.pid)
    }

    /// The changes, in order; questions are left out.
    fn changes(&self) -> Vec<String> {
        let model = self.model();
        let is_change = |call: &&String| !call.starts_with("print") && !call.starts_with("/bin/test");
        model.calls.iter().filter(is_change).cloned().collect()
    }

    fn launchctl(&self, arguments: &[&str]) -> i32 {
        let mut model = self.model();
        model.tick();
        model.launchctl(arguments).0
    }

    /// What the script does that ends a job and loads it again.
    async fn reload(&self, [domain, target, plist]: [&str; 3], tries: u32) -> CallOutput {
        let ended =
            |code, word: &str| CallOutput { code, stdout: format!("{word}\n"), stderr: String::new() };
        let code = self.launchctl(&["bootout", target]);
        if !ExitCode::from(code).is_booted_out() {
            return ended(code, "bootout");
        }
        let mut left = tries;
        while self.launchctl(&["print", target]) != 113 {
            left -= 1;
            if left == 0 {
                return ended(1, "print");
            }
            sleep(POLL).await;
        }
        for _ in 0..tries {
            let code = self.launchctl(&["bootstrap", domain, plist]);
            if !ExitCode::from(code).is_bootstrap_retried() {
                return ended(code, "bootstrap");
            }
            sleep(POLL).await;
        }
        ended(5, "bootstrap")
    }

    async fn roll(&self, flag: &str, restart: bool) -> Result<Rolled, RollError> {
        self.roll_with(flag, restart, None).await
    }

    async fn roll_with(
        &self,
        flag: &str,
        restart: bool,
        previous: Option<&str>,
    ) -> Result<Rolled, RollError> {
        let job = job(flag);
        let outdated = if restart { Outdated::Process } else { Outdated::Nothing };
        roll(self, &Roll { job: &job, plist: AGENT_PLIST, outdated, previous_program: previous }).await
    }
}

impl Model {
    /// Brings processes up to now.
    fn tick(&mut self) {
        let now = Instant::now();
        let Some(loaded) = &mut self.loaded else { return };
        if loaded.gone.is_some_and(|gone| now >= gone) {
            self.loaded = None;
            return;
        }
        let Some(&Program::Ends(after, last)) = self.programs.get(loaded.job.program()) else { return };
        let (life, pause) = (Duration::from_secs(after), Duration::from_secs(10));
        loop {
            match loaded.pid {
                Some(_) if now >= loaded.since + life => {
                    (loaded.pid, loaded.last) = (None, last);
                    loaded.since += life;
                }
                None if now >= loaded.since + pause => {
                    loaded.since += pause;
                    loaded.pid = Some(self.next_pid);
                    loaded.runs += 1;
                    self.next_pid += 1;
                }
                _ => return,
            }
        }
    }

    fn spawn(&mut self) {
        let Some(loaded) = &mut self.loaded else { return };
        if self.programs.get(loaded.job.program()) != Some(&Program::NeverSpawns) {
            loaded.pid = Some(self.next_pid);
            loaded.since = Instant::now();
            loaded.runs += 1;
            self.next_pid += 1;
        }
    }

    fn launchctl(&mut self, arguments: &[&str]) -> (i32, String) {
        self.calls.push(arguments.join(" "));
        match arguments {
            ["print", _] => self.loaded.as_ref().map_or((113, String::new()), |loaded| (0, print(loaded))),
            ["print-disabled", "system"] => {
                let word = if self.is_disabled { "disabled" } else { "enabled" };
                (0, format!("\tdisabled services = {{\n\t\t\"dev.tuist.tart-kubelet\" => {word}\n\t}}\n"))
            }
            ["enable", _] => {
                self.is_disabled = false;
                (0, String::new())
            }
            ["bootout", _] => match &mut self.loaded {
                None => (3, String::new()),
                Some(loaded) => {
                    loaded.gone = Some(Instant::now() + self.stop);
                    (0, String::new())
                }
            },
            ["bootstrap", "system", path] => {
                let xml = String::from_utf8(self.files[*path].clone()).unwrap();
                assert!(self.loaded.is_none(), "the label is still loaded");
                if self.busy.0 > 0 {
                    self.busy.0 -= 1;
                    return (self.busy.1, String::new());
                }
                if let Some((text, code)) = self.refusal
                    && xml.contains(text)
                {
                    return (code, String::new());
                }
                if self.forgets {
                    return (0, String::new());
                }
                let job = Job::from_plist(xml.as_bytes()).unwrap();
                let (since, last) = (Instant::now(), "last exit code = (never exited)");
                self.loaded = Some(Loaded { job, pid: None, since, runs: 0, last, gone: None });
                self.spawn();
                (0, String::new())
            }
            ["kickstart", ..] if self.loaded.is_none() => (113, String::new()),
            ["kickstart", "-k", _] => {
                if !self.is_kickstart_idle {
                    self.spawn();
                }
                (0, String::new())
            }
            ["kickstart", _] => {
                if self.loaded.as_ref().is_some_and(|loaded| loaded.pid.is_none()) {
                    self.spawn();
                }
                (0, String::new())
            }
            other => panic!("launchctl {other:?}"),
        }
    }
}

fn print(loaded: &Loaded) -> String {
    let arguments = loaded.job.program_arguments.join("\n\t\t");
    let state = match loaded.pid {
        _ if loaded.gone.is_some() => "SIGTERMed",
        Some(_) => "running",
        None if loaded.runs == 0 => "not running",
        None => "spawn scheduled",
    };
    let pid = loaded.pid.map(|pid| format!("\tpid = {pid}\n")).unwrap_or_default();
    format!(
        "system/x = {{\n\tpath = {AGENT_PLIST}\n\tstate = {state}\n\n\tprogram = {}\n\targuments = {{\n\t\t{arguments}\n\t}}\n\texit timeout = {}\n\truns = {}\n{pid}\t{}\n}}\n",
        loaded.job.program(),
        loaded.job.exit_time_out,
        loaded.runs,
        loaded.last,
    )
}

impl Host for ScriptedMac {
    async fn run(&self, call: Call<'_>) -> Result<CallOutput, HostError> {
        if let ["/bin/sh", "-c", _, "sh", "/bin/launchctl", domain, target, plist, tries] = call.argv {
            return Ok(self.reload([domain, target, plist], tries.parse().unwrap()).await);
        }
        let mut model = self.model();
        model.tick();
        let (code, stdout) = match call.argv {
            ["/bin/launchctl", arguments @ ..] => model.launchctl(arguments),
            ["/bin/test", "-x", program] => {
                (i32::from(!model.programs.contains_key(*program)), String::new())
            }
            ["/bin/mv", "-f", from, to] => {
                model.calls.push(format!("mv {from} {to}"));
                let program = model.programs.remove(*from).unwrap();
                model.programs.insert((*to).to_owned(), program);
                (0, String::new())
            }
            other => panic!("{other:?}"),
        };
        Ok(CallOutput { code, stdout, stderr: String::new() })
    }

    async fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.model().files.get(path).cloned())
    }

    async fn write_file(&self, path: &str, contents: &[u8], access: &Access) -> Result<(), HostError> {
        assert_eq!(*access, Access::root(0o644));
        let mut model = self.model();
        model.calls.push(format!("write {path}"));
        model.files.insert(path.to_owned(), contents.to_owned());
        Ok(())
    }
}

const REGISTER: [&str; 4] = [
    "write /Library/LaunchDaemons/dev.tuist.tart-kubelet.plist",
    "enable system/dev.tuist.tart-kubelet",
    "bootout system/dev.tuist.tart-kubelet",
    "bootstrap system /Library/LaunchDaemons/dev.tuist.tart-kubelet.plist",
];
const RESTART: &str = "kickstart -k system/dev.tuist.tart-kubelet";

fn failure(result: Result<Rolled, RollError>) -> (Diagnosis, Fallback, String) {
    let error = result.unwrap_err();
    let words = error.to_string();
    match error {
        RollError::NotRunning { diagnosis, fallback, .. } => (diagnosis, fallback, words),
        other => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_roll_registers_the_job_and_a_second_one_changes_nothing() {
    let mac = ScriptedMac::new();
    assert_eq!(mac.roll("--a", false).await.unwrap(), Rolled::Registered { pid: 100 });
    assert_eq!(mac.changes(), REGISTER);
    mac.model().calls.clear();
    assert_eq!(mac.roll("--a", false).await.unwrap(), Rolled::Unchanged { pid: 100 });
    assert_eq!(mac.changes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_new_binary_restarts_the_job_and_does_not_register_it_again() {
    let mac = ScriptedMac::running("--a").await;
    assert_eq!(mac.roll("--a", true).await.unwrap(), Rolled::Restarted { pid: 101 });
    assert_eq!(mac.changes(), [RESTART]);
}

#[tokio::test(start_paused = true)]
async fn a_new_flag_registers_the_job_anew_after_the_old_one_is_gone() {
    let mac = ScriptedMac::running("--a").await;
    mac.model().stop = Duration::from_secs(18);
    assert_eq!(mac.roll("--b", false).await.unwrap(), Rolled::Registered { pid: 101 });
    assert_eq!(mac.changes(), REGISTER);
}

#[tokio::test(start_paused = true)]
async fn a_bootstrap_that_comes_too_early_is_tried_again() {
    for code in [5, 17, 36, 37] {
        let mac = ScriptedMac::running("--a").await;
        mac.model().busy = (20, code);
        assert_eq!(mac.roll("--b", false).await.unwrap(), Rolled::Registered { pid: 101 }, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_roll_that_died_after_it_wrote_the_property_list_is_finished_by_the_next_one() {
    let mac = ScriptedMac::running("--a").await;
    mac.model().files.insert(AGENT_PLIST.to_owned(), job("--b").to_plist().unwrap());
    assert_eq!(mac.roll("--b", false).await.unwrap(), Rolled::Registered { pid: 101 });
    assert_eq!(mac.changes(), REGISTER[1..]);
}

#[tokio::test(start_paused = true)]
async fn a_disabled_job_is_enabled() {
    let mac = ScriptedMac::running("--a").await;
    mac.model().is_disabled = true;
    assert_eq!(mac.roll("--a", false).await.unwrap(), Rolled::Unchanged { pid: 100 });
    assert_eq!(mac.changes(), ["enable system/dev.tuist.tart-kubelet"]);
}

#[tokio::test(start_paused = true)]
async fn a_missing_binary_changes_nothing() {
    let mac = ScriptedMac::running("--a").await;
    mac.model().programs.clear();
    let error = mac.roll("--b", true).await.unwrap_err().to_string();
    assert!(error.contains("/usr/local/bin/tart-kubelet is missing"), "{error}");
    assert_eq!(mac.changes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_launchd_loads_and_does_not_start_is_started() {
    let mac = ScriptedMac::new();
    mac.model().programs.insert(AGENT_BINARY.to_owned(), Program::NeverSpawns);
    let (diagnosis, fallback, words) = failure(mac.roll("--a", false).await);
    assert_eq!((diagnosis, fallback), (Diagnosis::NotSpawned, Fallback::None));
    assert!(
        words.contains("Background Task Management") && words.contains("state not running, runs 0"),
        "{words}"
    );
    let changes = mac.changes();
    let kicks =
        ["kickstart system/dev.tuist.tart-kubelet", RESTART, "kickstart system/dev.tuist.tart-kubelet"];
    assert_eq!(changes[4..], kicks);
}

#[tokio::test(start_paused = true)]
async fn a_kickstart_without_effect_is_told_by_the_pid() {
    let mac = ScriptedMac::running("--a").await;
    mac.model().is_kickstart_idle = true;
    let (diagnosis, _, words) = failure(mac.roll("--a", true).await);
    assert_eq!(diagnosis, Diagnosis::KickstartWithoutEffect { pid: 100 });
    assert!(words.contains("the old process 100 still runs"), "{words}");
    assert_eq!(mac.changes(), [RESTART, RESTART]);
}

#[tokio::test(start_paused = true)]
async fn a_binary_that_macos_kills_gives_way_to_the_old_one() {
    let mac = ScriptedMac::running("--a").await;
    let killed = Program::Ends(0, "last exit reason = OS_REASON_CODESIGNING");
    mac.model().programs = [(PREVIOUS.to_owned(), Program::Lives), (AGENT_BINARY.to_owned(), killed)].into();
    let (diagnosis, fallback, words) = failure(mac.roll_with("--a", true, Some(PREVIOUS)).await);
    assert_eq!(diagnosis, Diagnosis::CodeSigning);
    let pid = mac.pid().unwrap();
    assert_eq!(fallback, Fallback::Restored { pid });
    assert!(words.contains("OS_REASON_CODESIGNING") && words.contains("the old one was put back"), "{words}");
    assert_eq!(mac.changes(), [RESTART, RESTART, &format!("mv {PREVIOUS} {AGENT_BINARY}"), RESTART]);
}

#[tokio::test(start_paused = true)]
async fn a_binary_that_ends_soon_is_a_throttled_job_and_without_an_old_one_the_error_is_all() {
    let mac = ScriptedMac::running("--a").await;
    mac.model().programs.insert(AGENT_BINARY.to_owned(), Program::Ends(2, "last exit code = 2"));
    let (diagnosis, fallback, words) = failure(mac.roll("--a", true).await);
    assert_eq!((diagnosis, fallback), (Diagnosis::Throttled, Fallback::None));
    assert!(words.contains("last exit code 2"), "{words}");
}

#[tokio::test(start_paused = true)]
async fn a_property_list_that_launchd_refuses_gives_way_to_the_old_one() {
    for (code, wanted) in [
        (109, Diagnosis::BadPlist),
        (155, Diagnosis::Quarantined),
        (122, Diagnosis::BadPermissions),
        (5, Diagnosis::Refused(ExitCode::InputOutput)),
    ] {
        let mac = ScriptedMac::running("--a").await;
        mac.model().refusal = Some(("--b", code));
        let (diagnosis, fallback, words) = failure(mac.roll("--b", false).await);
        assert_eq!((diagnosis, fallback), (wanted, Fallback::Restored { pid: 101 }), "{words}");
        assert_eq!(mac.model().files[AGENT_PLIST], job("--a").to_plist().unwrap());
        // The drift is still there: the next roll tries again.
        mac.model().refusal = None;
        assert_eq!(mac.roll("--b", false).await.unwrap(), Rolled::Registered { pid: 102 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_does_not_end_is_told_and_not_loaded_twice() {
    let mac = ScriptedMac::running("--a").await;
    mac.model().stop = Duration::from_hours(1);
    let (diagnosis, fallback, words) = failure(mac.roll("--b", false).await);
    assert_eq!((diagnosis, fallback), (Diagnosis::StillLoaded, Fallback::None));
    assert!(words.contains("SIGTERMed"), "{words}");
    assert_eq!(mac.changes(), REGISTER[..3]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_launchd_forgets_is_told() {
    let mac = ScriptedMac::new();
    mac.model().forgets = true;
    let (diagnosis, _, words) = failure(mac.roll("--a", false).await);
    assert_eq!(diagnosis, Diagnosis::Dropped, "{words}");
    assert!(words.contains("launchd says: not loaded"), "{words}");
}

/// Its umask is nothing that `launchctl print` shows: the bytes and what launchd says are those of the new definition.
#[tokio::test(start_paused = true)]
async fn a_definition_that_launchd_may_not_have_is_registered_anew() {
    let mac = ScriptedMac::running("--a").await;
    let job = job("--a");
    let outdated = Outdated::Definition;
    let again = Roll { job: &job, plist: AGENT_PLIST, outdated, previous_program: None };
    assert_eq!(roll(&mac, &again).await.unwrap(), Rolled::Registered { pid: 101 });
    assert_eq!(mac.changes(), REGISTER[1..]);
}
