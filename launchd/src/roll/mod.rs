//! The roll: it brings a job to a new binary or a new definition, and proves that the new one runs.
//!
//! Observe: the property list on the disk and what launchd has loaded. [`plan()`] decides: restart in place, or register anew. [`settle`] decides
//! whether the new process counts. A roll that fails puts the old binary and the old property list back. Each act is safe to repeat: a roll
//! that dies anywhere is finished by the next one.

mod diagnosis;
mod error;
mod plan;
mod settle;
#[cfg(test)]
mod tests;

pub use diagnosis::Diagnosis;
pub use error::{Fallback, RollError};
pub use plan::Outdated;

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::host::{Access, Call, Host};
use crate::job::Job;
use crate::launchctl::{Launchctl, LaunchctlError, Registration, Reloaded, reload_deadline};
use plan::{Plan, PlistOnDisk, plan};
use settle::{Next, Settle};

/// How often launchd is asked while a roll waits.
const POLL: Duration = Duration::from_millis(500);
/// How long launchd may take beside the time that the old process has to end.
const SLACK: Duration = Duration::from_secs(10);
/// How long a small command may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(15);
/// launchd loads no property list that others than root can change.
const PLIST_MODE: u32 = 0o644;

/// A roll of one job.
#[derive(Debug, Clone, Copy)]
pub struct Roll<'a> {
    /// The job as it should be.
    pub job: &'a Job,
    /// The file of its property list.
    pub plist: &'a str,
    /// What is outdated although the property list is not.
    pub outdated: Outdated,
    /// The old program under another name. A roll that fails renames it back.
    pub previous_program: Option<&'a str>,
}

/// A roll that worked: the job runs as this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rolled {
    /// Nothing had to be done.
    Unchanged {
        /// The process.
        pid: u32,
    },
    /// The process was replaced; launchd's registration is the old one.
    Restarted {
        /// The process.
        pid: u32,
    },
    /// The job was registered, for the first time or anew.
    Registered {
        /// The process.
        pid: u32,
    },
}

/// The longest that a roll may take while launchd answers, with the old job put back in the end.
pub fn longest_roll(job: &Job) -> Duration {
    let once = reload_deadline(patience(job, None)) + settle::deadline(job) * 2;
    once * 2
}

/// How long a job may take to end. The old job may have had more time to end than the new one has.
fn patience(job: &Job, loaded: Option<&Registration>) -> Duration {
    let service = loaded.and_then(Registration::service);
    let old = service.and_then(|service| service.exit_timeout).unwrap_or_default();
    Duration::from_secs(old.max(job.exit_time_out.into())) + SLACK
}

/// Rolls a job.
pub async fn roll<H: Host>(host: &H, roll: &Roll<'_>) -> Result<Rolled, RollError> {
    let wanted = roll.job.to_plist()?;
    let program = roll.job.program();
    if !host.run(Call::new(&["/bin/test", "-x", program], COMMAND_DEADLINE)).await?.is_success() {
        return Err(RollError::MissingProgram { program: program.to_owned() });
    }
    let acting = Acting { host, launchctl: Launchctl::of(host), roll };
    let loaded = acting.launchctl.print(&roll.job.label).await?;
    let installed = host.read_file(roll.plist).await?;
    let on_disk = match &installed {
        None => PlistOnDisk::Missing,
        Some(bytes) if *bytes == wanted => PlistOnDisk::Same,
        Some(_) => PlistOnDisk::Different,
    };
    let plan = plan(roll.job, roll.plist, on_disk, &loaded, roll.outdated);
    if acting.launchctl.is_disabled(&roll.job.label).await? {
        // launchd would not load it at the next boot.
        acting.launchctl.enable(&roll.job.label).await?;
    }
    let failure = match acting.execute(plan, &wanted, &loaded).await? {
        Ok(rolled) => return Ok(rolled),
        Err(failure) => failure,
    };
    let old_plist = installed.filter(|_| on_disk == PlistOnDisk::Different);
    let fallback = acting.go_back(&failure, old_plist.as_deref()).await;
    let Failure { diagnosis, seen } = failure;
    Err(RollError::NotRunning { label: roll.job.label.clone(), diagnosis, seen: Box::new(seen), fallback })
}

/// A job that launchd does not get to run.
#[derive(Debug)]
struct Failure {
    diagnosis: Diagnosis,
    seen: Registration,
}

struct Acting<'a, H> {
    host: &'a H,
    launchctl: Launchctl<'a, H>,
    roll: &'a Roll<'a>,
}

impl<H: Host> Acting<'_, H> {
    /// Does what was planned and waits until the job has come to rest.
    async fn execute(
        &self,
        plan: Plan,
        wanted: &[u8],
        loaded: &Registration,
    ) -> Result<Result<Rolled, Failure>, RollError> {
        let old = loaded.pid();
        let must_go = match plan {
            Plan::Keep => None,
            Plan::Restart => {
                self.launchctl.restart(&self.roll.job.label).await?;
                old
            }
            Plan::Register { write } => {
                let contents = write.then_some(wanted);
                if let Err(failure) = self.register(self.roll.job, contents, loaded).await? {
                    return Ok(Err(failure));
                }
                old
            }
        };
        let settled = self.settle(self.roll.job, must_go).await?;
        Ok(settled.map(|pid| match plan {
            Plan::Keep if Some(pid) == old => Rolled::Unchanged { pid },
            Plan::Keep | Plan::Restart => Rolled::Restarted { pid },
            Plan::Register { .. } => Rolled::Registered { pid },
        }))
    }

    /// Has launchd forget the job and load it from its property list, which is written first where there are new contents for it.
    async fn register(
        &self,
        job: &Job,
        contents: Option<&[u8]>,
        loaded: &Registration,
    ) -> Result<Result<(), Failure>, RollError> {
        let label = &job.label;
        if let Some(contents) = contents {
            self.host.write_file(self.roll.plist, contents, &Access::root(PLIST_MODE)).await?;
        }
        self.launchctl.enable(label).await?;
        let patience = patience(job, Some(loaded));
        let start = Instant::now();
        loop {
            let code = match self.launchctl.reload(label, self.roll.plist, patience).await? {
                Reloaded::Loaded => return Ok(Ok(())),
                Reloaded::StillLoaded => {
                    let seen = self.launchctl.print(label).await?;
                    return Ok(Err(Failure { diagnosis: Diagnosis::StillLoaded, seen }));
                }
                Reloaded::Refused(code) => code,
            };
            let seen = self.launchctl.print(label).await?;
            if seen.service().is_some_and(|service| service.is_of(job, self.roll.plist)) {
                // "Already bootstrapped": another program was faster.
                return Ok(Ok(()));
            }
            // A job that is not there was tried often enough. One that is there is another program's, and is ended once more.
            let is_over = seen == Registration::NotLoaded || start.elapsed() >= patience;
            if !code.is_bootstrap_retried() || is_over {
                let is_disabled = self.launchctl.is_disabled(label).await?;
                return Ok(Err(Failure { diagnosis: Diagnosis::of_refused(code, is_disabled), seen }));
            }
            sleep(POLL).await;
        }
    }

    /// Waits for a process that is not `old` and stays. A job that does not come to rest is restarted once.
    async fn settle(&self, job: &Job, old: Option<u32>) -> Result<Result<u32, Failure>, RollError> {
        let mut was_restarted = false;
        loop {
            let seen = match self.wait(job, old).await? {
                Ok(pid) => return Ok(Ok(pid)),
                Err(seen) => seen,
            };
            if was_restarted || seen == Registration::NotLoaded {
                let diagnosis = Diagnosis::of_unsettled(job, self.roll.plist, old, &seen);
                return Ok(Err(Failure { diagnosis, seen }));
            }
            self.launchctl.restart(&job.label).await?;
            was_restarted = true;
        }
    }

    /// Waits until the job has come to rest, or returns what launchd said last.
    async fn wait(&self, job: &Job, old: Option<u32>) -> Result<Result<u32, Registration>, LaunchctlError> {
        let start = Instant::now();
        let mut settle = Settle::new(job, self.roll.plist, old);
        loop {
            let seen = self.launchctl.print(&job.label).await?;
            match settle.next(start.elapsed(), &seen) {
                Next::Wait => sleep(POLL).await,
                Next::Settled(pid) => return Ok(Ok(pid)),
                Next::Start => self.launchctl.kickstart(&job.label).await?,
                Next::GiveUp => return Ok(Err(seen)),
            }
        }
    }

    /// Puts the old program and the old property list back, where there are any.
    async fn go_back(&self, failure: &Failure, old_plist: Option<&[u8]>) -> Fallback {
        let has_something = self.roll.previous_program.is_some() || old_plist.is_some();
        if !has_something || !failure.diagnosis.is_cured_by_the_old_job() {
            return Fallback::None;
        }
        match self.run_the_old_job(failure, old_plist).await {
            Ok(Ok(pid)) => Fallback::Restored { pid },
            Ok(Err(Failure { diagnosis, seen })) => {
                Fallback::Failed { reason: format!("{diagnosis} ({seen})") }
            }
            Err(error) => Fallback::Failed { reason: error.to_string() },
        }
    }

    async fn run_the_old_job(
        &self,
        failure: &Failure,
        old_plist: Option<&[u8]>,
    ) -> Result<Result<u32, Failure>, RollError> {
        if let Some(previous) = self.roll.previous_program {
            let program = self.roll.job.program();
            let moved =
                self.host.run(Call::new(&["/bin/mv", "-f", previous, program], COMMAND_DEADLINE)).await?;
            if !moved.is_success() {
                let (previous, program) = (previous.to_owned(), program.to_owned());
                return Err(RollError::PutBack { previous, program, message: moved.message() });
            }
        }
        // A property list of an older release may have keys that no job of this one has: then the new definition stays.
        let old_job = old_plist.and_then(|bytes| Some((Job::from_plist(bytes).ok()?, bytes)));
        let job = old_job.as_ref().map_or(self.roll.job, |(job, _)| job);
        let must_register = old_job.is_some() || failure.seen == Registration::NotLoaded;
        if must_register {
            let contents = old_job.as_ref().map(|(_, bytes)| *bytes);
            if let Err(failure) = self.register(job, contents, &failure.seen).await? {
                return Ok(Err(failure));
            }
        } else {
            self.launchctl.restart(&job.label).await?;
        }
        self.settle(job, None).await
    }
}
