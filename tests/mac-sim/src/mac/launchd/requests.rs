//! What launchd does for those who ask.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use mac_sim::control::{Domain, Refusal, Reply, Request};
use mac_sim::fault::Fault;
use mac_sim::settings::UID;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, sethostname};

use super::boot::{is_apples, kind};
use super::definition::{Definition, DefinitionError};
use super::job::{Job, State};
use super::{Answer, Caller, Halt, Key, Launchd, disabled, print, refuse};

/// The error numbers of launchd.
mod code {
    pub(super) const NOT_PERMITTED: u8 = 1;
    pub(super) const NO_SUCH_FILE: u8 = 2;
    pub(super) const NO_SUCH_PROCESS: u8 = 3;
    pub(super) const INPUT_OUTPUT: u8 = 5;
    pub(super) const IN_PROGRESS: u8 = 36;
    pub(super) const INVALID_LIST: u8 = 109;
    pub(super) const NO_LABEL: u8 = 110;
    pub(super) const NO_PROGRAM: u8 = 111;
    pub(super) const NO_DOMAIN: u8 = 112;
    pub(super) const NO_SERVICE: u8 = 113;
    pub(super) const BAD_OWNERSHIP: u8 = 122;
    pub(super) const NO_SESSION: u8 = 125;
    pub(super) const WRONG_SESSION: u8 = 134;
    pub(super) const INTEGRITY_PROTECTION: u8 = 150;
}

type Answered = Result<Reply, Refusal>;

impl Launchd {
    /// Carries out a request, and answers now or, for `kickstart`, when the process is there.
    pub(super) fn answer(&mut self, request: Request, caller: Caller, answer: &Answer) {
        if let Request::Kickstart { domain, label, kill } = request {
            let answered = self.kickstart(&(domain, label), kill, caller, answer);
            if let Some(answered) = answered.transpose() {
                let _ = answer.send(answered);
            }
            return;
        }
        let answered = self.carry_out(request, caller);
        // The client may be gone.
        let _ = answer.send(answered);
    }

    fn carry_out(&mut self, request: Request, caller: Caller) -> Answered {
        match request {
            Request::Print(domain, label) => {
                let key = (domain, label);
                Ok(Reply::Text(print::job(&key, self.job(&key)?)))
            }
            Request::PrintDomain(domain) => {
                self.ensure_domain(domain, code::NO_DOMAIN)?;
                Ok(Reply::Text(self.domain(domain)))
            }
            Request::PrintDisabled(domain) => Ok(Reply::Text(disabled::print(domain))),
            Request::List(domain) => Ok(Reply::Text(self.list(domain))),
            Request::ListJob(domain, label) => {
                let key = (domain, label);
                Ok(Reply::Text(print::old_style(&key.1, self.job(&key)?)))
            }
            Request::SetEnabled(domain, label, is_enabled) => {
                allow(domain, caller)?;
                let written = disabled::write(domain, &label, !is_enabled);
                written.map(|()| Reply::Done).map_err(|_| Refusal::new(code::INPUT_OUTPUT))
            }
            Request::Bootstrap(domain, path) => self.bootstrap(domain, &path, caller),
            Request::Bootout(domain, label) => self.bootout(&(domain, label), caller),
            Request::BootoutPath(domain, path) => self.bootout_path(domain, &path, caller),
            Request::Kill(domain, label, signal) => self.signal(&(domain, label), signal, caller),
            // Carried out by its own function.
            Request::Kickstart { .. } => Err(Refusal::new(code::INPUT_OUTPUT)),
            Request::Called(words) => self.called(&words),
            own => self.carry_out_own(own, caller),
        }
    }

    /// What only root and the simulator ask for.
    fn carry_out_own(&mut self, request: Request, caller: Caller) -> Answered {
        allow(Domain::System, caller)?;
        match request {
            Request::OpenSession(uid) => self.open_session(uid),
            Request::Reboot => self.shut_down(Halt::Reboot),
            Request::PowerOff => self.shut_down(Halt::PowerOff),
            Request::CutConnections => self.cut_connections(),
            Request::SetHostName(name) => {
                sethostname(name).map_err(|_| Refusal::new(code::INPUT_OUTPUT))?;
            }
            _ => return Err(Refusal::new(code::INPUT_OUTPUT)),
        }
        Ok(Reply::Done)
    }

    /// A simulated program is about to run: a fault may restart the Mac, or cut the connections.
    fn called(&mut self, words: &[String]) -> Answered {
        self.faults.check().map_err(|error| refuse(&error))?;
        if self.faults.counts_down_to(Fault::CutAtNth, words).map_err(|error| refuse(&error))? {
            self.cut_connections();
        }
        for fault in [Fault::CutAt, Fault::RebootAt] {
            if self.faults.hits_call(fault, words).map_err(|error| refuse(&error))? {
                self.faults.switch_off(fault).map_err(|error| refuse(&error))?;
                if fault == Fault::CutAt {
                    self.cut_connections();
                } else {
                    // As when the power fails for a moment: no process has time to finish what it does.
                    self.halt = Some(Halt::Reboot);
                }
            }
        }
        Ok(Reply::Done)
    }

    fn job(&self, key: &Key) -> Result<&Job, Refusal> {
        self.ensure_domain(key.0, code::NO_DOMAIN)?;
        self.jobs.get(key).ok_or_else(|| Refusal::new(code::NO_SERVICE))
    }

    /// A user's session is a domain only while the user is logged in at the screen.
    fn ensure_domain(&self, domain: Domain, otherwise: u8) -> Result<(), Refusal> {
        match domain {
            Domain::Gui(uid) if !self.sessions.contains(&uid) => Err(Refusal::new(otherwise)),
            Domain::User(uid) if uid != UID => Err(Refusal::new(otherwise)),
            Domain::System | Domain::User(_) | Domain::Gui(_) => Ok(()),
        }
    }

    fn bootstrap(&mut self, domain: Domain, path: &Path, caller: Caller) -> Answered {
        // launchd tells only root why.
        self.try_bootstrap(domain, path, caller).map_err(|refusal| match caller {
            0 => refusal,
            _ if refusal.code == code::NO_SESSION => refusal,
            _ => Refusal::new(code::INPUT_OUTPUT),
        })
    }

    fn try_bootstrap(&mut self, domain: Domain, path: &Path, caller: Caller) -> Answered {
        allow(domain, caller)?;
        self.ensure_domain(domain, code::NO_SESSION)?;
        let definition = Self::definition(domain, path)?;
        let told = |words: &str| format!("{}: {words}", path.display());
        let refused = self.faults.parameter(Fault::RefusedCode).map_err(|error| refuse(&error))?;
        if let Some(number) = refused.and_then(|text| text.parse().ok()) {
            self.faults.switch_off(Fault::RefusedCode).map_err(|error| refuse(&error))?;
            return Err(Refusal::new(number));
        }
        if self.jobs.contains_key(&(domain, definition.label.clone())) {
            return Err(match self.knob(Fault::LoadedCode, 5)? {
                5 => Refusal::new(5),
                other => Refusal::with(other, told("service already bootstrapped")),
            });
        }
        if disabled::is_disabled(domain, &definition.label, definition.disabled) {
            return Err(match self.knob(Fault::DisabledCode, 5)? {
                5 => Refusal::new(5),
                other => Refusal::with(other, told("Service is disabled")),
            });
        }
        self.load(domain, Job::new(definition, path.to_owned(), kind(domain)));
        Ok(Reply::Done)
    }

    /// Reads and checks a property list.
    pub(super) fn definition(domain: Domain, path: &Path) -> Result<Definition, Refusal> {
        let told = |number: u8, words: &str| Refusal::with(number, format!("{}: {words}", path.display()));
        let metadata =
            std::fs::metadata(path).map_err(|_| told(code::NO_SUCH_FILE, "No such file or directory"))?;
        let owner_is_right = match domain {
            Domain::System => metadata.uid() == 0 && metadata.gid() == 0,
            Domain::User(uid) | Domain::Gui(uid) => metadata.uid() == 0 || metadata.uid() == uid,
        };
        if !owner_is_right || metadata.mode() & 0o022 != 0 {
            return Err(told(code::BAD_OWNERSHIP, "Path had bad ownership/permissions"));
        }
        let bytes = std::fs::read(path).map_err(|_| Refusal::new(code::INPUT_OUTPUT))?;
        let definition = Definition::parse(&bytes).map_err(|error| {
            let number = match error {
                DefinitionError::NotAPropertyList => code::INVALID_LIST,
                DefinitionError::NoLabel => code::NO_LABEL,
                DefinitionError::NoProgram => code::NO_PROGRAM,
                DefinitionError::NotSimulated(_) => mac_sim::fault::REFUSED,
            };
            told(number, &error.to_string())
        })?;
        let aqua =
            definition.session_types.is_empty() || definition.session_types.iter().any(|kind| kind == "Aqua");
        if matches!(domain, Domain::Gui(_)) && !aqua {
            return Err(told(code::WRONG_SESSION, "Service cannot load in requested session"));
        }
        Ok(definition)
    }

    /// Puts a job into the table, and starts it if it says so.
    pub(super) fn load(&mut self, domain: Domain, mut job: Job) {
        let key = (domain, job.definition.label.clone());
        if !self.hits(Fault::NeverSpawn, &key.1) {
            let now = Instant::now();
            job.state = match job.definition.start_interval {
                _ if job.definition.run_at_load => State::Scheduled(now),
                Some(interval) => State::Scheduled(now + interval),
                None => State::Idle,
            };
        }
        self.jobs.insert(key, job);
    }

    fn bootout(&mut self, key: &Key, caller: Caller) -> Answered {
        allow(key.0, caller)?;
        self.ensure_domain(key.0, code::NO_SESSION)?;
        let Some(job) = self.jobs.get(key) else { return Err(Refusal::new(code::NO_SUCH_PROCESS)) };
        if is_apples(&key.1) {
            return Err(Refusal::new(code::INTEGRITY_PROTECTION));
        }
        let still_runs = job.pid().is_some();
        self.unload(key);
        let is_old =
            self.faults.parameter(Fault::Flavour).map_err(|error| refuse(&error))?.as_deref() == Some("old");
        if is_old && still_runs { Err(Refusal::new(code::IN_PROGRESS)) } else { Ok(Reply::Done) }
    }

    /// Takes a job out of the table, now or when its process is gone.
    pub(super) fn unload(&mut self, key: &Key) {
        let lingers = self.faults.duration(Fault::SlowBootout).unwrap_or_default().unwrap_or_default();
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.is_leaving = true;
        job.is_restarting = false;
        for answer in job.waiting.drain(..) {
            let _ = answer.send(Err(Refusal::new(code::NO_SERVICE)));
        }
        match job.state {
            State::Idle | State::Scheduled(_) => job.state = State::Lingering(Instant::now() + lingers),
            State::Running(_) => self.terminate(key),
            State::Terminating(..) | State::Killed(_) | State::Lingering(_) => {}
        }
    }

    fn bootout_path(&mut self, domain: Domain, path: &PathBuf, caller: Caller) -> Answered {
        let found = self.jobs.iter().find(|((of, _), job)| *of == domain && job.path == *path);
        match found.map(|(key, _)| key.clone()) {
            Some(key) => self.bootout(&key, caller),
            None => Err(Refusal::new(code::INPUT_OUTPUT)),
        }
    }

    /// Starts a job. `None` if the answer is given when its process is there.
    fn kickstart(
        &mut self,
        key: &Key,
        kill: bool,
        caller: Caller,
        answer: &Answer,
    ) -> Result<Option<Reply>, Refusal> {
        self.job(key)?;
        allow(key.0, caller)?;
        let is_idle = self.hits(Fault::KickstartIdle, &key.1);
        let Some(job) = self.jobs.get_mut(key) else { return Err(Refusal::new(code::NO_SERVICE)) };
        if job.is_leaving {
            return Err(Refusal::new(code::NO_SERVICE));
        }
        match (&job.state, kill) {
            (State::Running(process), kill) if !kill || is_idle => return Ok(Some(Reply::Pid(process.pid))),
            (State::Running(_) | State::Terminating(..) | State::Killed(_), _) => {
                job.is_restarting = true;
                job.waiting.push(answer.clone());
                self.terminate(key);
            }
            (State::Idle | State::Scheduled(_) | State::Lingering(_), _) => {
                job.waiting.push(answer.clone());
                job.state = State::Scheduled(Instant::now());
            }
        }
        Ok(None)
    }

    fn signal(&mut self, key: &Key, number: i32, caller: Caller) -> Answered {
        let pid = self.job(key)?.pid();
        allow(key.0, caller)?;
        let Some(pid) = pid else { return Err(Refusal::new(code::NO_SUCH_PROCESS)) };
        let signal = Signal::try_from(number).map_err(|_| Refusal::new(22))?;
        kill(Pid::from_raw(pid), signal).map_err(|_| Refusal::new(code::NO_SUCH_PROCESS))?;
        Ok(Reply::Done)
    }

    fn knob(&self, fault: Fault, default: u8) -> Result<u8, Refusal> {
        let parameter = self.faults.parameter(fault).map_err(|error| refuse(&error))?;
        Ok(parameter.and_then(|text| text.parse().ok()).unwrap_or(default))
    }
}

/// Only root changes the Mac's jobs; users change their own.
fn allow(domain: Domain, caller: Caller) -> Result<(), Refusal> {
    match domain {
        _ if caller == 0 => Ok(()),
        Domain::User(uid) | Domain::Gui(uid) if uid == caller => Ok(()),
        Domain::System | Domain::User(_) | Domain::Gui(_) => Err(Refusal::new(code::NOT_PERMITTED)),
    }
}
