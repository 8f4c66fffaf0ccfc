//! A Mac in memory, for tests of the steps: files, settings, and a launchd that starts what it is told to. Behaviour over SSH is tested on the
//! simulated Mac.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use launchd::{Access, Call, CallOutput, ConsoleUser, Host, HostError, Job, Owner, agent_job};

use super::Remote;
use super::firewall::{self, ANCHOR};
use crate::artifact::{Artifact, Sha256Hash};

/// A file or a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// `None` for a directory.
    pub(super) bytes: Option<Vec<u8>>,
    access: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Loaded {
    job: Job,
    pid: u32,
    /// What its program was when it started.
    program: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is about something else")]
pub(super) struct State {
    pub(super) files: BTreeMap<String, Entry>,
    settings: BTreeMap<String, String>,
    jobs: BTreeMap<String, Loaded>,
    /// The labels of jobs that launchd would not load.
    pub(super) disabled: BTreeSet<String>,
    has_session: bool,
    has_sudo: bool,
    next_pid: u32,
    /// Whether the command that runs has changed the Mac.
    is_changed: bool,
    /// Everything that changed the Mac.
    pub(super) pushes: Vec<String>,
    /// Every command line.
    pub(super) argvs: Vec<String>,
    /// Every call: command lines, and the paths of files.
    pub(super) calls: Vec<String>,
    /// The connection ends with this one of the calls to come, counted from 0.
    pub(super) cut: Option<Cut>,
    /// The connection has ended.
    pub(super) is_lost: bool,
}

/// When a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// How many calls come before.
    pub(super) after: usize,
    /// Whether the last call still reaches the Mac, and only its answer is lost.
    pub(super) is_carried_out: bool,
}

/// What becomes of a call.
enum Line {
    Up,
    /// The call reaches the Mac, its answer does not come back.
    AnswerLost,
    Down,
}

pub(super) struct MemoryMac(Mutex<State>);

const RUNNER: &str = "/opt/actions-runner";

/// A program that does not run.
pub(super) const BROKEN: &[u8] = b"broken";

impl MemoryMac {
    /// A new Mac: no sudo, no session, no `/usr/local/bin`.
    pub(super) fn new() -> Self {
        let pmset =
            ["sleep", "displaysleep", "disksleep"].map(|key| (format!("pmset {key}"), "10".to_owned()));
        let settings = pmset.into_iter().chain([("pmset autorestart".to_owned(), "0".to_owned())]).collect();
        Self(Mutex::new(State { settings, next_pid: 100, ..State::default() }))
    }

    /// Another Mac that is the same.
    pub(super) fn copy(&self) -> Self {
        Self(Mutex::new(self.state().clone()))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The Mac's settings and jobs as they are now, but for PIDs.
    pub(super) fn settings_and_jobs(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let state = self.state();
        let jobs: Vec<_> = state.jobs.values().map(|is| (is.job.clone(), is.program.clone())).collect();
        (state.settings.clone(), jobs, state.has_session, state.has_sudo)
    }

    /// The files that one of two Macs has and the other has not, or has otherwise.
    pub(super) fn files_unlike(&self, other: &Self) -> Vec<String> {
        let (own, others) = (self.state().files.clone(), other.state().files.clone());
        let paths: BTreeSet<&String> = own.keys().chain(others.keys()).collect();
        paths.into_iter().filter(|path| own.get(*path) != others.get(*path)).cloned().collect()
    }

    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        self.state().files.get(path).and_then(|entry| entry.bytes.clone())
    }

    pub(super) fn pid(&self, label: &str) -> Option<u32> {
        self.state().jobs.get(label).map(|loaded| loaded.pid)
    }

    /// The arguments with which a job runs.
    pub(super) fn arguments(&self, label: &str) -> Vec<String> {
        self.state().jobs[label].job.program_arguments.clone()
    }
}

fn owner_text(owner: &Owner) -> String {
    match owner {
        Owner::Root => "root:wheel".to_owned(),
        Owner::User(name) => format!("{name}:staff"),
    }
}

type Answer = (i32, String);

fn done() -> Answer {
    (0, String::new())
}

fn printed(text: impl Into<String>) -> Answer {
    (0, text.into())
}

fn failed(code: i32) -> Answer {
    (code, String::new())
}

impl State {
    /// Counts a call, and says whether it goes through.
    fn line(&mut self, call: &str) -> Line {
        self.calls.push(call.to_owned());
        match &mut self.cut {
            _ if self.is_lost => Line::Down,
            None => Line::Up,
            Some(cut) if cut.after > 0 => {
                cut.after -= 1;
                Line::Up
            }
            Some(cut) => {
                self.is_lost = true;
                if cut.is_carried_out { Line::AnswerLost } else { Line::Down }
            }
        }
    }

    /// A new connection, which is not cut.
    pub(super) fn reconnect(&mut self) {
        (self.cut, self.is_lost) = (None, false);
    }

    fn entry(&mut self, path: &str, bytes: Option<Vec<u8>>, owner: &str, mode: &str) {
        let entry = Entry { bytes, access: format!("{owner} {mode}") };
        self.is_changed |= self.files.get(path) != Some(&entry);
        self.files.insert(path.to_owned(), entry);
    }

    fn command(&mut self, argv: &[&str], stdin: &[u8]) -> Answer {
        self.is_changed = false;
        let answer = self.execute(argv, stdin);
        if self.is_changed {
            self.pushes.push(argv.join(" "));
        }
        answer
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each command")]
    fn execute(&mut self, argv: &[&str], stdin: &[u8]) -> Answer {
        match argv {
            ["/usr/bin/sudo", "-n", "/usr/bin/true"] => failed(i32::from(!self.has_sudo)),
            ["/usr/bin/sudo", "-S", .., path, rule] => {
                assert_eq!(stdin, b"canary-password\n");
                self.has_sudo = true;
                self.entry(path, Some(format!("{rule}\n").into_bytes()), "root:wheel", "440");
                done()
            }
            ["/usr/bin/id", "-u", _] => printed("501\n"),
            ["/bin/test", _, path] => failed(i32::from(!self.files.contains_key(*path))),
            ["/usr/bin/stat", "-f", _, path] => self
                .files
                .get(*path)
                .map_or_else(|| failed(1), |entry| printed(format!("{}\n", entry.access))),
            ["/usr/bin/shasum", "-a", "256", path] => {
                let bytes = self.files[*path].bytes.clone().unwrap();
                printed(format!("{}  {path}\n", Sha256Hash::of(&bytes)))
            }
            ["/bin/mkdir", "-p", "-m", "755", path] => {
                if !self.files.contains_key(*path) {
                    self.entry(path, None, "root:wheel", "755");
                }
                done()
            }
            ["/usr/bin/install", "-d", "-o", user, "-g", group, "-m", mode, path] => {
                self.entry(path, None, &format!("{user}:{group}"), mode);
                done()
            }
            ["/usr/bin/codesign", "--force", "--sign", "-", path] => {
                self.is_changed = true;
                let entry = self.files.get_mut(*path).unwrap();
                entry.bytes.as_mut().unwrap().extend_from_slice(b" signed");
                done()
            }
            ["/bin/df", "-k", _] => {
                printed("Filesystem 1024-blocks Used Available Capacity\n/dev/disk3s5 9 9 900000000 1%\n")
            }
            ["/usr/bin/tar", "-xf", archive, "-C", place] => {
                let bytes = self.files[*archive].bytes.clone();
                let program =
                    if place.contains("runner") { "config.sh" } else { "tart.app/Contents/MacOS/tart" };
                self.entry(&format!("{place}/{program}"), bytes, "root:wheel", "755");
                done()
            }
            // The script that ends a job and loads it again.
            ["/bin/sh", "-c", _, "sh", "/bin/launchctl", domain, job, plist, _] => {
                self.launchctl(&["bootout", job]);
                let (code, _) = self.launchctl(&["bootstrap", domain, plist]);
                (code, "bootstrap\n".to_owned())
            }
            ["/bin/sh", "-c", script] if script.contains("SSH_CONNECTION") => {
                printed("10.0.0.9 50000 10.0.0.1 22\n")
            }
            [_, "status", "--json"] => self.tailscale_status(),
            ["/bin/sh", "-c", _, "sh", _, _, "up", flags @ ..] => {
                assert_eq!(stdin, b"tskey-client-canary?ephemeral=true&preauthorized=true\n");
                self.set("tailnet".to_owned(), &flags.join(" "))
            }
            [_, "logout"] => {
                self.is_changed = true;
                self.settings.remove("tailnet");
                done()
            }
            ["/bin/sh", "-c", _, "sh", RUNNER] => self.install_runner(),
            ["/bin/sh", "-c", _, "sh", RUNNER, flags @ ..] => {
                assert_eq!(stdin, b"canary-token\n");
                for name in [".runner", ".credentials"] {
                    let path = format!("{RUNNER}/{name}");
                    self.entry(&path, Some(flags.join(" ").into_bytes()), "m1:staff", "600");
                }
                done()
            }
            ["/bin/ln", from, to] => {
                assert!(!self.files.contains_key(*to), "{to} is there");
                self.is_changed = true;
                let entry = self.files[*from].clone();
                self.files.insert((*to).to_owned(), entry);
                done()
            }
            ["/bin/mv", "-f", from, to] => {
                let moved: Vec<String> = self.below(from);
                self.is_changed = true;
                for path in moved {
                    let entry = self.files.remove(&path).unwrap();
                    self.files.insert(path.replacen(from, to, 1), entry);
                }
                done()
            }
            ["/bin/rm", _, paths @ ..] => {
                for path in paths.iter().flat_map(|path| self.below(path)).collect::<Vec<_>>() {
                    self.is_changed = true;
                    self.files.remove(&path);
                }
                done()
            }
            ["/usr/bin/pmset", "-g"] => {
                let lines = self
                    .settings
                    .iter()
                    .filter_map(|(key, value)| Some((key.strip_prefix("pmset ")?, value)));
                printed(lines.map(|(key, value)| format!(" {key}   {value}")).collect::<Vec<_>>().join("\n"))
            }
            ["/usr/bin/pmset", "-a", key, value] => self.set(format!("pmset {key}"), value),
            ["/usr/sbin/scutil", "--get", key] => self.get(&format!("scutil {key}")),
            ["/usr/sbin/scutil", "--set", key, value] => self.set(format!("scutil {key}"), value),
            ["/usr/bin/defaults", "-currentHost", rest @ ..] => self.defaults("host ", rest),
            ["/usr/bin/defaults", rest @ ..] => self.defaults("", rest),
            ["/bin/launchctl", rest @ ..] => self.launchctl(rest),
            ["/bin/mkdir", "-p", paths @ ..] => {
                for path in paths {
                    self.entry(path, None, "root:wheel", "755");
                }
                done()
            }
            ["/sbin/pfctl", "-s", "rules"] => printed("anchor \"com.apple/*\" all\n"),
            ["/sbin/pfctl", "-a", ANCHOR, "-s", "rules"] => printed("block drop in quick\n"),
            ["/sbin/pfctl" | "/usr/sbin/chown" | "/bin/chmod", ..] => done(),
            [program, "--version"] => match self.files[*program].bytes.as_deref().unwrap() {
                bytes if bytes.starts_with(BROKEN) => failed(137),
                bytes => printed(String::from_utf8_lossy(bytes).into_owned()),
            },
            other => panic!("{other:?}"),
        }
    }

    fn tailscale_status(&self) -> Answer {
        if !self.jobs.contains_key("com.tailscale.tailscaled") {
            return failed(1);
        }
        let is_in = self.settings.contains_key("tailnet");
        printed(if is_in {
            r#"{"BackendState":"Running","TailscaleIPs":["100.64.1.2"]}"#
        } else {
            r#"{"BackendState":"NeedsLogin","TailscaleIPs":null}"#
        })
    }

    /// `svc.sh install`.
    fn install_runner(&mut self) -> Answer {
        let label = "actions.runner.tuist.mac-1";
        let plist = format!("/Users/m1/Library/LaunchAgents/{label}.plist");
        let mut job = agent_job(&ConsoleUser::named("m1"), []);
        job.label = label.parse().unwrap();
        job.program_arguments = vec![format!("{RUNNER}/runsvc.sh")];
        self.entry(&plist, Some(job.to_plist().unwrap()), "m1:staff", "644");
        self.entry(&format!("{RUNNER}/.service"), Some(plist.into_bytes()), "m1:staff", "644");
        done()
    }

    fn below(&self, path: &str) -> Vec<String> {
        let inside = format!("{path}/");
        self.files.keys().filter(|key| *key == path || key.starts_with(&inside)).cloned().collect()
    }

    fn get(&self, key: &str) -> Answer {
        self.settings.get(key).map_or_else(|| failed(1), |value| printed(format!("{value}\n")))
    }

    fn set(&mut self, key: String, value: &str) -> Answer {
        self.is_changed |= self.settings.get(&key).map(String::as_str) != Some(value);
        self.settings.insert(key, value.to_owned());
        done()
    }

    fn defaults(&mut self, scope: &str, words: &[&str]) -> Answer {
        let name = |domain: &str, key: &str| format!("defaults {scope}{domain} {key}");
        match words {
            ["read", domain, key] => self.get(&name(domain, key)),
            ["write", domain, key, "-int", value] | ["write", domain, key, value] => {
                self.set(name(domain, key), value)
            }
            ["write", domain, key, "-dict-add", inner, "-int", value] => {
                self.set(name(domain, key), &format!("{{\n    {inner} = {value};\n}}"))
            }
            ["write", domain, key, "-array", values @ ..] => {
                let lines: Vec<String> = values.iter().map(|value| format!("    \"{value}\"")).collect();
                self.set(name(domain, key), &format!("(\n{}\n)", lines.join(",\n")))
            }
            other => panic!("defaults {other:?}"),
        }
    }

    /// The definition that launchd has loaded.
    pub(super) fn definition(&self, label: &str) -> Job {
        self.jobs[label].job.clone()
    }

    /// Gives launchd another definition than the property list has.
    pub(super) fn alter_job(&mut self, label: &str, alter: impl Fn(&mut Job)) {
        alter(&mut self.jobs.get_mut(label).unwrap().job);
    }

    fn start(&mut self, job: Job) {
        let program = self.files.get(job.program()).and_then(|entry| entry.bytes.clone()).unwrap_or_default();
        self.next_pid += 1;
        self.is_changed = true;
        if job.label.as_str() == firewall::LABEL {
            // The script has loaded the rules.
            let rules = self.files[firewall::RULES_FILE].clone();
            self.files.insert("/var/run/tart-kubelet-firewall/loaded".to_owned(), rules);
        }
        self.jobs.insert(job.label.to_string(), Loaded { job, pid: self.next_pid, program });
    }

    fn launchctl(&mut self, words: &[&str]) -> Answer {
        let label = |target: &str| {
            let label = target.strip_prefix("system/").or_else(|| target.strip_prefix("gui/501/"));
            label.unwrap_or(target).to_owned()
        };
        match words {
            ["print", "gui/501"] if self.has_session => printed("gui/501 = {\n\tsession = Aqua\n}\n"),
            ["print", "gui/501"] => failed(112),
            ["print-disabled", "system"] => {
                let lines = self.disabled.iter().map(|label| format!("\t\t\"{label}\" => disabled\n"));
                printed(format!("\tdisabled services = {{\n{}\t}}\n", lines.collect::<String>()))
            }
            ["print", target] => self.jobs.get(&label(target)).map_or_else(
                || failed(113),
                |loaded| {
                    let arguments = loaded.job.program_arguments.join("\n\t\t");
                    let pid = loaded.pid;
                    printed(format!("x = {{\n\tstate = running\n\targuments = {{\n\t\t{arguments}\n\t}}\n\tpid = {pid}\n}}\n"))
                },
            ),
            ["enable", target] => {
                self.is_changed |= self.disabled.remove(&label(target));
                done()
            }
            ["bootout", target] => {
                let gone = self.jobs.remove(&label(target));
                self.is_changed |= gone.is_some();
                gone.map_or_else(|| failed(3), |_| done())
            }
            ["bootstrap", "system" | "gui/501", path] => {
                let job = Job::from_plist(self.files[*path].bytes.as_ref().unwrap()).unwrap();
                self.start(job);
                done()
            }
            ["kickstart", "-k", "system/com.apple.loginwindow"] => {
                self.has_session = true;
                done()
            }
            ["kickstart", target] if self.jobs.contains_key(&label(target)) => done(),
            ["kickstart", "-k", target] | ["kickstart", target] => {
                let job = self.jobs[&label(target)].job.clone();
                self.start(job);
                done()
            }
            other => panic!("launchctl {other:?}"),
        }
    }

    /// Paths of all files that were ever pushed and are there.
    pub(super) fn paths(&self) -> BTreeSet<String> {
        self.files.keys().cloned().collect()
    }
}

fn cut(program: &str) -> HostError {
    HostError::Run { program: program.to_owned(), source: "the connection was cut".into() }
}

impl Host for MemoryMac {
    async fn run(&self, call: Call<'_>) -> Result<CallOutput, HostError> {
        let mut state = self.state();
        let line = state.line(&call.argv.join(" "));
        if matches!(line, Line::Down) {
            return Err(cut(call.program()));
        }
        state.argvs.push(call.argv.join(" "));
        let (code, stdout) = state.command(call.argv, call.stdin);
        match line {
            Line::Up => Ok(CallOutput { code, stdout, stderr: String::new() }),
            Line::AnswerLost | Line::Down => Err(cut(call.program())),
        }
    }

    async fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        match self.state().line(path) {
            Line::Up => (),
            Line::AnswerLost | Line::Down => {
                return Err(HostError::Read {
                    path: path.to_owned(),
                    source: "the connection was cut".into(),
                });
            }
        }
        Ok(self.bytes(path))
    }

    async fn write_file(&self, path: &str, contents: &[u8], access: &Access) -> Result<(), HostError> {
        let mut state = self.state();
        let line = state.line(path);
        if !matches!(line, Line::Down) {
            state.pushes.push(format!("write {path}"));
            let (owner, mode) = (owner_text(&access.owner), format!("{:o}", access.mode));
            state.entry(path, Some(contents.to_owned()), &owner, &mode);
        }
        match line {
            Line::Up => Ok(()),
            Line::AnswerLost | Line::Down => {
                Err(HostError::Write { path: path.to_owned(), source: "the connection was cut".into() })
            }
        }
    }
}

impl Remote for MemoryMac {
    async fn run_as_user(&self, call: Call<'_>) -> Result<CallOutput, HostError> {
        self.run(call).await
    }

    fn is_lost(&self) -> bool {
        self.state().is_lost
    }

    async fn upload(&self, artifact: &Artifact, path: &str, _: Duration) -> Result<(), HostError> {
        let bytes = std::fs::read(artifact.path()).unwrap();
        self.write_file(path, &bytes, &Access::root(0o755)).await
    }
}
