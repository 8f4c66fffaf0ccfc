//! A runner of GitHub Actions, in the session of the user at the screen. A runner that is registered and loaded is left alone: the token of a
//! later run would be stale, and must not cost a healthy runner.

use std::time::Duration;

use launchd::{AGENT_PATH, Access, Call, Domain, Label, Launchctl, Registration, Reloaded};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    COMMAND_DEADLINE, Change, Inputs, PartError, Remote, ensure_room, note, note_path, noted, run,
    run_within, sha256, succeeded,
};
use crate::artifact::{Artifact, Sha256Hash};

/// Where the runner is.
const DIRECTORY: &str = "/opt/actions-runner";
const STAGED: &str = "/opt/.actions-runner.staged";
/// The name of the note that says how the runner was registered.
const NOTE: &str = "actions-runner";
/// The note of a registration that has begun.
const UNFINISHED: &str = "unfinished";

const UPLOAD_DEADLINE: Duration = Duration::from_mins(10);
const UNPACK_DEADLINE: Duration = Duration::from_mins(2);
const REGISTER_DEADLINE: Duration = Duration::from_mins(2);
/// How long an old runner may take to end, and a new one to start.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_secs(1);

/// Registers the runner. The runner takes every flag from a variable, too, so that the token is in no command line.
const REGISTER: &str = "set -eu
cd \"$1\"
shift
IFS= read -r ACTIONS_RUNNER_INPUT_TOKEN
export ACTIONS_RUNNER_INPUT_TOKEN
exec ./config.sh \"$@\" </dev/null";
/// Writes the property list of the runner's job. It does not load it: `svc.sh start` cannot, over SSH.
const INSTALL_SERVICE: &str = "cd \"$1\" && exec ./svc.sh install";

/// A runner.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ActionsRunnerPart {
    /// The user at the screen.
    pub(crate) user: String,
    /// The archive that it is unpacked from when there is none. Runners bring themselves up to date, so that another archive is no other
    /// runner.
    #[serde(skip)]
    pub(crate) archive: Artifact,
    /// The organization or repository.
    pub(crate) url: String,
    /// Its name at GitHub.
    pub(crate) name: String,
    /// Its further labels at GitHub.
    pub(crate) labels: Vec<String>,
}

/// No runner: one that this provider has installed is removed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ActionsRunnerRemoved {
    /// The user at the screen.
    pub(crate) user: String,
}

/// The runner's job, as `svc.sh` has made it.
struct Service {
    plist: String,
    label: Label,
}

fn path(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

impl ActionsRunnerPart {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let what = format!("Actions runner of {}", self.url);
        if !is_registered(mac).await? {
            return Ok(vec![Change::new(what, "not registered", format!("registered as {}", self.name))]);
        }
        let uid = uid(mac, &self.user).await?;
        let is_loaded = match service(mac).await? {
            Some(service) => {
                Launchctl::in_domain(mac, Domain::Gui(uid)).print(&service.label).await?
                    != Registration::NotLoaded
            }
            None => false,
        };
        if !is_loaded {
            return Ok(vec![Change::new(what, "registered, but not loaded", "running")]);
        }
        // A runner without a note was there before the provider.
        match noted(mac, NOTE).await? {
            Some(note) if note != self.registration().as_str() => Ok(vec![Change::new(
                what,
                "registered with another name, address or labels",
                "registered anew",
            )]),
            _ => Ok(Vec::new()),
        }
    }

    /// What the runner is registered with.
    fn registration(&self) -> Sha256Hash {
        Sha256Hash::of(&serde_json::to_vec(&(&self.url, &self.name, &self.labels)).unwrap_or_default())
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R, inputs: &Inputs) -> Result<(), PartError> {
        let uid = uid(mac, &self.user).await?;
        let is_same = noted(mac, NOTE).await?.is_none_or(|note| note == self.registration().as_str());
        if !(is_same && is_registered(mac).await?) {
            let secret = "a registration token";
            let missing = PartError::NoSecret {
                what: "the Actions runner",
                secret,
                flag: "--actions-runner-token-file",
            };
            let token = inputs.runner_token.as_ref().ok_or(missing)?;
            self.unpack(mac).await?;
            forget(mac, uid).await?;
            // A runner without a note is taken for one that was there before.
            note(mac, NOTE, UNFINISHED).await?;
            self.register(mac, token.expose()).await?;
            note(mac, NOTE, self.registration().as_str()).await?;
        }
        let service = self.install_service(mac).await?;
        start(mac, uid, &service).await
    }

    /// Unpacks the archive where no runner is. What is there and has no `config.sh` is a rest of an attempt.
    async fn unpack<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        let is_there = mac.run(Call::new(&["/bin/test", "-f", &path("config.sh")], COMMAND_DEADLINE)).await?;
        if is_there.is_success() {
            return Ok(());
        }
        let archive = format!("{STAGED}.tar");
        ensure_room(mac, "/opt", 4 * self.archive.size()).await?;
        mac.upload(&self.archive, &archive, UPLOAD_DEADLINE).await?;
        let arrived = sha256(mac, &archive).await?.unwrap_or_default();
        if arrived != self.archive.sha256().as_str() {
            let wanted = self.archive.sha256().to_string();
            return Err(PartError::Damaged { path: archive, is: arrived, wanted });
        }
        run(mac, &["/bin/rm", "-rf", STAGED]).await?;
        run(mac, &["/bin/mkdir", "-p", "-m", "755", STAGED]).await?;
        run_within(mac, &["/usr/bin/tar", "-xf", &archive, "-C", STAGED], UNPACK_DEADLINE).await?;
        run(mac, &["/bin/rm", "-f", &archive]).await?;
        run(mac, &["/usr/sbin/chown", "-R", &format!("{}:staff", self.user), STAGED]).await?;
        run(mac, &["/bin/rm", "-rf", DIRECTORY]).await?;
        run(mac, &["/bin/mv", "-f", STAGED, DIRECTORY]).await.map(drop)
    }

    async fn register<R: Remote>(&self, mac: &R, token: &[u8]) -> Result<(), PartError> {
        let labels = self.labels.join(",");
        let mut argv = vec![
            "/bin/sh",
            "-c",
            REGISTER,
            "sh",
            DIRECTORY,
            "--unattended",
            "--replace",
            "--url",
            &self.url,
            "--name",
            &self.name,
            "--work",
            "_work",
        ];
        if !labels.is_empty() {
            argv.extend(["--labels", &labels]);
        }
        let mut line = token.trim_ascii().to_owned();
        line.push(b'\n');
        let call = Call::new(&argv, REGISTER_DEADLINE).with_stdin(&line);
        let output = mac.run_as_user(call).await?;
        if output.is_success() {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(token.trim_ascii()).into_owned();
        let message = format!("it cannot be registered: {}", output.message().replace(&shown, "(the token)"));
        Err(PartError::Runner { label: self.name.clone(), message })
    }

    /// Has the runner write the property list of its job, and gives the job the agent's search path: the runner takes that of the SSH session,
    /// in which Homebrew is missing.
    async fn install_service<R: Remote>(&self, mac: &R) -> Result<Service, PartError> {
        if service(mac).await?.is_none() {
            let call = Call::new(&["/bin/sh", "-c", INSTALL_SERVICE, "sh", DIRECTORY], COMMAND_DEADLINE);
            succeeded(call, mac.run_as_user(call).await?)?;
        }
        let access = Access::user(&self.user, 0o644);
        mac.write_file(&path(".path"), format!("{AGENT_PATH}\n").as_bytes(), &access).await?;
        let missing = || PartError::Runner {
            label: self.name.clone(),
            message: "`svc.sh install` made no job".to_owned(),
        };
        service(mac).await?.ok_or_else(missing)
    }
}

impl ActionsRunnerRemoved {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let is_ours = noted(mac, NOTE).await?.is_some();
        Ok(if is_ours { vec![Change::new("Actions runner", "there", "gone")] } else { Vec::new() })
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        let uid = uid(mac, &self.user).await?;
        forget(mac, uid).await?;
        run_within(mac, &["/bin/rm", "-rf", DIRECTORY], UNPACK_DEADLINE).await?;
        run(mac, &["/bin/rm", "-f", &note_path(NOTE)]).await.map(drop)
    }
}

/// The number of a user.
async fn uid<R: Remote>(mac: &R, user: &str) -> Result<u32, PartError> {
    let output = run(mac, &["/usr/bin/id", "-u", user]).await?;
    let number = output.stdout.trim().parse();
    number.map_err(|_| PartError::NoSession { user: user.to_owned() })
}

/// Whether GitHub knows the runner.
async fn is_registered<R: Remote>(mac: &R) -> Result<bool, PartError> {
    for name in [".runner", ".credentials"] {
        if !mac.run(Call::new(&["/bin/test", "-f", &path(name)], COMMAND_DEADLINE)).await?.is_success() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The runner's job, by the file in which `svc.sh` keeps the path of its property list.
async fn service<R: Remote>(mac: &R) -> Result<Option<Service>, PartError> {
    let Some(file) = mac.read_file(&path(".service")).await? else { return Ok(None) };
    let plist = String::from_utf8_lossy(&file).trim().to_owned();
    let is_there = mac.run(Call::new(&["/bin/test", "-f", &plist], COMMAND_DEADLINE)).await?.is_success();
    let name = plist.rsplit('/').next().and_then(|name| name.strip_suffix(".plist"));
    let label = name.and_then(|name| name.parse().ok());
    Ok(label.filter(|_| is_there).map(|label| Service { plist, label }))
}

/// Ends an old runner, and forgets how it was registered.
async fn forget<R: Remote>(mac: &R, uid: u32) -> Result<(), PartError> {
    if let Some(Service { plist, label }) = service(mac).await? {
        if let Err(seen) = Launchctl::in_domain(mac, Domain::Gui(uid)).unload(&label, PATIENCE).await? {
            let (label, message) = (label.to_string(), format!("the old one does not end ({seen})"));
            return Err(PartError::Runner { label, message });
        }
        run(mac, &["/bin/rm", "-f", &plist]).await?;
    }
    let files = [".runner", ".credentials", ".credentials_rsaparams", ".service"].map(path);
    let files = files.iter().map(String::as_str);
    let argv: Vec<&str> = ["/bin/rm", "-f"].into_iter().chain(files).collect();
    run(mac, &argv).await.map(drop)
}

/// Loads the runner's job into the user's session, and waits for its process.
async fn start<R: Remote>(mac: &R, uid: u32, service: &Service) -> Result<(), PartError> {
    let launchctl = Launchctl::in_domain(mac, Domain::Gui(uid));
    if launchctl.print(&service.label).await? == Registration::NotLoaded {
        let message = match launchctl.reload(&service.label, &service.plist, PATIENCE).await? {
            Reloaded::Loaded => None,
            Reloaded::StillLoaded => Some("the old one does not end".to_owned()),
            Reloaded::Refused(code) => Some(format!("launchd does not load it ({code})")),
        };
        if let Some(message) = message {
            return Err(PartError::Runner { label: service.label.to_string(), message });
        }
    }
    launchctl.kickstart(&service.label).await?;
    let start = Instant::now();
    loop {
        let seen = launchctl.print(&service.label).await?;
        if seen.pid().is_some() {
            return Ok(());
        }
        if start.elapsed() >= PATIENCE {
            let label = service.label.to_string();
            return Err(PartError::Runner { label, message: format!("launchd says: {seen}") });
        }
        sleep(POLL).await;
    }
}
