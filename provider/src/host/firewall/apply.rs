//! Puts the firewall on a Mac: observe, decide, act, and see that it is in force.

use std::time::Duration;

use launchd::{
    Access, Call, ExitCode, Host, HostError, JobError, Label, Launchctl, LaunchctlError, Registration,
    Reloaded,
};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::config::FirewallConfig;
use super::legacy::{self, Act, Leftover, Observed};
use super::pfctl::{Pfctl, PfctlError, Scope};
use super::{ANCHOR, LOADER, PLIST, RULES_FILE, loader, rules};

/// How long a small command may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(15);
/// How long a job may take to end.
const UNLOAD_DEADLINE: Duration = Duration::from_secs(30);
/// How long the script may take. It tries for five seconds to load the rules.
const LOAD_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);

/// What [`apply`] has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// What older providers had left.
    pub removed: Vec<Leftover>,
    /// Whether a file of the firewall is new or has changed.
    pub is_changed: bool,
}

/// Why the firewall is not in force.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The Mac gave no answer.
    #[error(transparent)]
    Host(#[from] HostError),
    /// `launchctl` failed.
    #[error(transparent)]
    Launchctl(#[from] LaunchctlError),
    /// `pfctl` failed.
    #[error(transparent)]
    Pfctl(#[from] PfctlError),
    /// The job has no property list.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A command failed.
    #[error("`{command}` failed: {message}")]
    Command {
        /// The command.
        command: String,
        /// The last line of its standard error.
        message: String,
    },
    /// An old job does not end.
    #[error("the job {0} does not end")]
    StillLoaded(String),
    /// launchd does not load the job.
    #[error("launchd does not load the job {label} ({code})")]
    Refused {
        /// The job.
        label: Label,
        /// What launchd says.
        code: ExitCode,
    },
    /// The script that loads the rules has failed.
    #[error("the firewall is not in force: {0}")]
    NotLoaded(String),
    /// The rules are loaded into an anchor that pf does not evaluate.
    #[error(
        "the firewall is not in force: pf does not evaluate com.apple/*, because it did not load /etc/pf.conf at boot, and loading it \
         now would cut running VMs off: drain the Mac and restart it"
    )]
    NotEvaluated,
}

/// A file of the firewall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirewallFile {
    /// Where it is.
    pub path: &'static str,
    /// What it holds.
    pub contents: String,
    /// Its permission bits; it belongs to root.
    pub mode: u32,
}

/// The files of the firewall: the rules, the script that loads them, and the job that runs the script.
pub fn files(config: &FirewallConfig) -> Result<[FirewallFile; 3], JobError> {
    let plist = String::from_utf8_lossy(&loader::job().to_plist()?).into_owned();
    Ok([
        FirewallFile { path: RULES_FILE, contents: rules::render(config), mode: 0o644 },
        FirewallFile { path: LOADER, contents: loader::script(), mode: 0o755 },
        FirewallFile { path: PLIST, contents: plist, mode: 0o644 },
    ])
}

/// Something that keeps the firewall from being in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What it is, in words.
    pub words: String,
    /// The file as it is and as it should be, for one with other contents.
    pub contents: Option<(String, String)>,
}

impl From<String> for Difference {
    fn from(words: String) -> Self {
        Self { words, contents: None }
    }
}

/// What keeps the firewall from being in force; nothing when it is.
pub async fn differences<H: Host>(
    host: &H,
    config: &FirewallConfig,
) -> Result<Vec<Difference>, FirewallError> {
    let looking = Applying { host, launchctl: Launchctl::of(host), pfctl: Pfctl::of(host) };
    let observed = looking.observe().await?;
    let mut found: Vec<Difference> = legacy::decide(&observed)
        .iter()
        .map(|act| format!("an older provider has left {}", act.leftover()).into())
        .collect();
    for file in files(config)? {
        match host.read_file(file.path).await? {
            None => found.push(format!("{} is missing", file.path).into()),
            Some(is) if is != file.contents.as_bytes() => found.push(Difference {
                words: format!("{} has other contents", file.path),
                contents: Some((String::from_utf8_lossy(&is).into_owned(), file.contents)),
            }),
            Some(_) => (),
        }
    }
    if looking.launchctl.print(&loader::label()).await? == Registration::NotLoaded {
        found.push("the job that loads the rules is missing".to_owned().into());
    } else if !looking.is_loaded(&rules::render(config)).await? {
        found.push("pf has not loaded the rules".to_owned().into());
    }
    Ok(found)
}

/// Puts the firewall on a Mac, and removes what older providers have left. Safe to repeat.
pub async fn apply<H: Host>(host: &H, config: &FirewallConfig) -> Result<Applied, FirewallError> {
    let applying = Applying { host, launchctl: Launchctl::of(host), pfctl: Pfctl::of(host) };
    let observed = applying.observe().await?;
    let mut removed = Vec::new();
    for act in legacy::decide(&observed) {
        applying.act(&act).await?;
        removed.push(act.leftover());
    }
    let wanted = rules::render(config);
    let is_changed = applying.write_files(config).await?;
    applying.start(is_changed).await?;
    applying.wait_until_loaded(&wanted).await?;
    Ok(Applied { removed, is_changed })
}

struct Applying<'h, H> {
    host: &'h H,
    launchctl: Launchctl<'h, H>,
    pfctl: Pfctl<'h, H>,
}

impl<H: Host> Applying<'_, H> {
    async fn observe(&self) -> Result<Observed, FirewallError> {
        let anchor = Scope::Anchor(legacy::OLD_ANCHOR.into());
        let loaded = self.launchctl.print(&legacy::old_label()).await?;
        let mut main_rules = self.pfctl.rules(&Scope::Main).await?;
        main_rules.extend(self.pfctl.translations(&Scope::Main).await?);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Observed {
            is_job_there: loaded != Registration::NotLoaded
                || self.host.read_file(legacy::OLD_PLIST).await?.is_some(),
            pf_conf: self.host.read_file("/etc/pf.conf").await?.map(text),
            old_rules_file: self.host.read_file(legacy::OLD_RULES_FILE).await?.map(text),
            has_old_rules: !self.pfctl.rules(&anchor).await?.is_empty(),
            anchor_tables: self.pfctl.tables(&anchor).await?,
            main_tables: self.pfctl.tables(&Scope::Main).await?,
            main_rules,
        })
    }

    async fn act(&self, act: &Act) -> Result<(), FirewallError> {
        match act {
            Act::RetireJob => {
                self.unload(&legacy::old_label()).await?;
                self.command(&["/bin/rm", "-f", legacy::OLD_PLIST]).await
            }
            Act::WritePfConf(text) => {
                Ok(self.host.write_file("/etc/pf.conf", text.as_bytes(), &Access::root(0o644)).await?)
            }
            Act::FlushOldRules => Ok(self.pfctl.flush_rules(legacy::OLD_ANCHOR).await?),
            Act::KillTable(scope, table) => Ok(self.pfctl.kill_table(scope, table).await?),
            Act::RemoveOldRulesFile => self.command(&["/bin/rm", "-f", legacy::OLD_RULES_FILE]).await,
            Act::LoadMain => Ok(self.pfctl.load_main().await?),
        }
    }

    /// Writes the rules, the script and the job where they differ; returns whether one did.
    async fn write_files(&self, config: &FirewallConfig) -> Result<bool, FirewallError> {
        self.command(&["/bin/mkdir", "-p", "/usr/local/libexec", "/etc/pf.anchors"]).await?;
        let mut is_changed = false;
        for file in files(config)? {
            if self.host.read_file(file.path).await?.as_deref() != Some(file.contents.as_bytes()) {
                self.host.write_file(file.path, file.contents.as_bytes(), &Access::root(file.mode)).await?;
                is_changed = true;
            }
        }
        Ok(is_changed)
    }

    /// Whether pf has the rules.
    async fn is_loaded(&self, wanted: &str) -> Result<bool, FirewallError> {
        let is_loaded = self.host.read_file(loader::LOADED).await?.as_deref() == Some(wanted.as_bytes());
        Ok(is_loaded && !self.pfctl.rules(&Scope::Anchor(ANCHOR.into())).await?.is_empty())
    }

    /// Has launchd run the script. It does so every minute anyway; a change is not to wait for that.
    async fn start(&self, is_changed: bool) -> Result<(), FirewallError> {
        let label = loader::label();
        // What the script said before the change is no answer to it.
        self.command(&["/bin/rm", "-f", loader::ERROR]).await?;
        match self.launchctl.print(&label).await? {
            Registration::Loaded(_) if !is_changed => Ok(self.launchctl.kickstart(&label).await?),
            _ => {
                self.launchctl.enable(&label).await?;
                match self.launchctl.reload(&label, PLIST, UNLOAD_DEADLINE).await? {
                    Reloaded::Loaded => Ok(()),
                    Reloaded::StillLoaded => Err(FirewallError::StillLoaded(label.to_string())),
                    Reloaded::Refused(code) => Err(FirewallError::Refused { label, code }),
                }
            }
        }
    }

    async fn wait_until_loaded(&self, wanted: &str) -> Result<(), FirewallError> {
        let start = Instant::now();
        loop {
            let main_rules = self.pfctl.rules(&Scope::Main).await?;
            if !legacy::is_evaluated(&main_rules) {
                return Err(FirewallError::NotEvaluated);
            }
            if let Some(error) = self.host.read_file(loader::ERROR).await? {
                return Err(FirewallError::NotLoaded(String::from_utf8_lossy(&error).trim().to_owned()));
            }
            if self.is_loaded(wanted).await? {
                return Ok(());
            }
            if start.elapsed() >= LOAD_DEADLINE {
                let words = format!("its job has not loaded the rules within {} s", LOAD_DEADLINE.as_secs());
                return Err(FirewallError::NotLoaded(words));
            }
            sleep(POLL).await;
        }
    }

    async fn unload(&self, label: &Label) -> Result<(), FirewallError> {
        match self.launchctl.unload(label, UNLOAD_DEADLINE).await? {
            Ok(()) => Ok(()),
            Err(_) => Err(FirewallError::StillLoaded(label.to_string())),
        }
    }

    async fn command(&self, argv: &[&str]) -> Result<(), FirewallError> {
        let output = self.host.run(Call::new(argv, COMMAND_DEADLINE)).await?;
        if output.is_success() {
            return Ok(());
        }
        Err(FirewallError::Command { command: argv.join(" "), message: output.message() })
    }
}
