//! A Mac in memory, for tests of the steps: files, settings, and a launchd that starts what it is told to. Behaviour over SSH is tested on the
//! simulated Mac.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use launchd::{Access, Call, CallOutput, Host, HostError, Job, Owner};

use super::Remote;
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

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) files: BTreeMap<String, Entry>,
    settings: BTreeMap<String, String>,
    jobs: BTreeMap<String, Loaded>,
    has_session: bool,
    has_sudo: bool,
    next_pid: u32,
    /// Everything that changed the Mac.
    pub(super) pushes: Vec<String>,
    /// Every command line.
    pub(super) argvs: Vec<String>,
    /// The connection ends before the first call that contains this.
    pub(super) cut_at: Option<&'static str>,
}

pub(super) struct MemoryMac(Mutex<State>);

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

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The Mac's settings and jobs as they are now, but for PIDs.
    pub(super) fn settings_and_jobs(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let state = self.state();
        let jobs: Vec<_> = state.jobs.values().map(|is| (is.job.clone(), is.program.clone())).collect();
        (state.settings.clone(), jobs, state.has_session, state.has_sudo)
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
    fn lost(&self, what: &str) -> bool {
        self.cut_at.is_some_and(|text| what.contains(text))
    }

    fn entry(&mut self, path: &str, bytes: Option<Vec<u8>>, owner: &str, mode: &str) {
        self.files.insert(path.to_owned(), Entry { bytes, access: format!("{owner} {mode}") });
    }

    fn command(&mut self, argv: &[&str], stdin: &[u8]) -> Answer {
        let before = (self.files.clone(), self.settings.clone(), self.jobs.clone());
        let answer = self.execute(argv, stdin);
        if before != (self.files.clone(), self.settings.clone(), self.jobs.clone()) {
            self.pushes.push(argv.join(" "));
        }
        answer
    }

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
                let entry = self.files.get_mut(*path).unwrap();
                entry.bytes.as_mut().unwrap().extend_from_slice(b" signed");
                done()
            }
            ["/usr/bin/tar", "-xf", archive, "-C", place] => {
                let bytes = self.files[*archive].bytes.clone();
                self.entry(&format!("{place}/tart.app/Contents/MacOS/tart"), bytes, "root:wheel", "755");
                done()
            }
            ["/bin/ln", "-f", from, to] => {
                let entry = self.files[*from].clone();
                self.files.insert((*to).to_owned(), entry);
                done()
            }
            ["/bin/mv", "-f", from, to] => {
                let moved: Vec<String> = self.below(from);
                for path in moved {
                    let entry = self.files.remove(&path).unwrap();
                    self.files.insert(path.replacen(from, to, 1), entry);
                }
                done()
            }
            ["/bin/rm", _, paths @ ..] => {
                for path in paths.iter().flat_map(|path| self.below(path)).collect::<Vec<_>>() {
                    self.files.remove(&path);
                }
                done()
            }
            ["/usr/sbin/chown" | "/bin/chmod", ..] => done(),
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
            [program, "--version"] => match self.files[*program].bytes.as_deref().unwrap() {
                bytes if bytes.starts_with(BROKEN) => failed(137),
                bytes => printed(String::from_utf8_lossy(bytes).into_owned()),
            },
            other => panic!("{other:?}"),
        }
    }

    fn below(&self, path: &str) -> Vec<String> {
        let inside = format!("{path}/");
        self.files.keys().filter(|key| *key == path || key.starts_with(&inside)).cloned().collect()
    }

    fn get(&self, key: &str) -> Answer {
        self.settings.get(key).map_or_else(|| failed(1), |value| printed(format!("{value}\n")))
    }

    fn set(&mut self, key: String, value: &str) -> Answer {
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

    fn start(&mut self, job: Job) {
        let program = self.files[job.program()].bytes.clone().unwrap();
        self.next_pid += 1;
        self.jobs.insert(job.label.to_string(), Loaded { job, pid: self.next_pid, program });
    }

    fn launchctl(&mut self, words: &[&str]) -> Answer {
        let label = |target: &str| target.strip_prefix("system/").unwrap_or(target).to_owned();
        match words {
            ["print", "gui/501"] if self.has_session => printed("gui/501 = {\n\tsession = Aqua\n}\n"),
            ["print", "gui/501"] => failed(112),
            ["print-disabled", "system"] => printed("\tdisabled services = {\n\t}\n"),
            ["print", target] => self.jobs.get(&label(target)).map_or_else(
                || failed(113),
                |loaded| {
                    let arguments = loaded.job.program_arguments.join("\n\t\t");
                    let pid = loaded.pid;
                    printed(format!("x = {{\n\tstate = running\n\targuments = {{\n\t\t{arguments}\n\t}}\n\tpid = {pid}\n}}\n"))
                },
            ),
            ["enable", _] => done(),
            ["bootout", target] => self.jobs.remove(&label(target)).map_or_else(|| failed(3), |_| done()),
            ["bootstrap", "system", path] => {
                let job = Job::from_plist(self.files[*path].bytes.as_ref().unwrap()).unwrap();
                self.start(job);
                done()
            }
            ["kickstart", "-k", "system/com.apple.loginwindow"] => {
                self.has_session = true;
                done()
            }
            ["kickstart", "-k", target] => {
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
        let line = call.argv.join(" ");
        if state.lost(&line) {
            return Err(cut(call.program()));
        }
        state.argvs.push(line);
        let (code, stdout) = state.command(call.argv, call.stdin);
        Ok(CallOutput { code, stdout, stderr: String::new() })
    }

    async fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.bytes(path))
    }

    async fn write_file(&self, path: &str, contents: &[u8], access: &Access) -> Result<(), HostError> {
        let mut state = self.state();
        if state.lost(path) {
            return Err(HostError::Write { path: path.to_owned(), source: "the connection was cut".into() });
        }
        state.pushes.push(format!("write {path}"));
        state.entry(
            path,
            Some(contents.to_owned()),
            &owner_text(&access.owner),
            &format!("{:o}", access.mode),
        );
        Ok(())
    }
}

impl Remote for MemoryMac {
    async fn run_as_user(&self, call: Call<'_>) -> Result<CallOutput, HostError> {
        self.run(call).await
    }

    async fn upload(&self, artifact: &Artifact, path: &str, _: Duration) -> Result<(), HostError> {
        let bytes = std::fs::read(artifact.path()).unwrap();
        self.write_file(path, &bytes, &Access::root(0o755)).await
    }
}
