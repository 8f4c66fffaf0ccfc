//! What `doctor` sees of a Mac.

use std::path::Path;
use std::time::Duration;

use http::Request;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use launchd::{AGENT_BINARY, AGENT_PLIST, Host};
use tokio::time::timeout;

use crate::error_chain::chain;
use crate::identity::{KubeconfigFlaw, kubeconfig_flaws};
use crate::install::AgentSettings;
use crate::install::mac::{MacError, MacPrograms};
use crate::install::node_watch;
use crate::os::availability;
use crate::tart::TartVersion;

/// How long the API server may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// What `doctor` sees of a Mac. `None` stands for what could not be found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    /// What tart answers.
    pub(crate) tart: Option<TartAnswer>,
    /// The user who is logged in at the screen.
    pub(crate) console_user: Option<String>,
    /// Whether that user has a GUI session.
    pub(crate) has_session: bool,
    /// The user who is logged in automatically after a restart.
    pub(crate) auto_login_user: Option<String>,
    /// Whether the login keychain is unlocked.
    pub(crate) is_keychain_unlocked: Option<bool>,
    /// After how many minutes the Mac sleeps; 0 for never.
    pub(crate) sleep_minutes: Option<u32>,
    /// Whether a process keeps it from sleeping now.
    pub(crate) prevents_sleep: Option<bool>,
    /// For how many seconds guests keep their addresses.
    pub(crate) lease_seconds: Option<u32>,
    /// How much of the disk is left, in bytes, and how large it is.
    pub(crate) disk: Option<(u64, u64)>,
    /// Whether the user can list the directory of tart's VMs.
    pub(crate) is_home_readable: Option<bool>,
    /// Whether the agent's program is there, and its signature is valid.
    pub(crate) signature: Option<bool>,
    /// Whether the agent's job is there as a daemon of the system.
    pub(crate) has_job: bool,
    /// Whether the firewall of VMs is loaded.
    pub(crate) has_vm_firewall: Option<bool>,
    /// What is wrong with the kubeconfig; absent on a Mac that has not joined.
    pub(crate) kubeconfig: Option<Vec<KubeconfigFlaw>>,
    /// What the API server answers.
    pub(crate) api_server: Option<ApiAnswer>,
}

/// What tart answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TartAnswer {
    /// It is not there.
    Missing(String),
    /// It is too old.
    Outdated(String),
    /// It does not work.
    Broken(String),
    /// It works.
    Usable(String),
}

/// What the API server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ApiAnswer {
    /// How many seconds its clock is ahead of this Mac's, if it tells the time.
    Answered(Option<i64>),
    /// Nothing.
    Silent(String),
}

/// Looks at this Mac.
pub(crate) async fn observe<H: Host>(host: &H, settings: &AgentSettings) -> Result<Observation, MacError> {
    let mac = MacPrograms::of(host);
    let user = mac.console_user().await?;
    let (mut has_session, mut is_keychain_unlocked, mut is_home_readable) = (false, None, None);
    if let Some(user) = &user {
        has_session = mac.has_gui_session(&user.name).await?;
        is_keychain_unlocked = mac.is_keychain_unlocked(user).await?;
        is_home_readable = mac.can_list(&user.name, &format!("{}/.tart", user.home)).await?;
    }
    let has_program = mac.exists(AGENT_BINARY).await?;
    let home = user.as_ref().map_or("/", |user| user.home.as_str());
    let tart = if mac.exists(&settings.tart.to_string_lossy()).await? {
        tart(&mac, user.as_ref().map(|user| user.name.as_str()), &settings.tart).await?
    } else {
        TartAnswer::Missing(settings.tart.display().to_string())
    };
    let disk = availability::volume(Path::new(home));
    Ok(Observation {
        tart: Some(tart),
        has_session,
        auto_login_user: mac.auto_login_user().await?,
        is_keychain_unlocked,
        sleep_minutes: mac.sleep_minutes().await?,
        prevents_sleep: mac.prevents_sleep().await?,
        lease_seconds: mac.lease_seconds().await?,
        disk: disk.map(|disk| (disk.available, disk.total)),
        is_home_readable,
        signature: if has_program { Some(mac.is_signed(AGENT_BINARY).await?) } else { None },
        has_job: mac.exists(AGENT_PLIST).await?,
        has_vm_firewall: mac.has_vm_firewall().await?,
        kubeconfig: settings.kubeconfig.exists().then(|| kubeconfig_flaws(&settings.kubeconfig)),
        api_server: api_server(settings).await,
        console_user: user.map(|user| user.name),
    })
}

async fn tart<H: Host>(
    mac: &MacPrograms<'_, H>,
    user: Option<&str>,
    program: &Path,
) -> Result<TartAnswer, MacError> {
    let output = mac.tart_version(user, &program.to_string_lossy()).await?;
    Ok(match TartVersion::parse(output.stdout.trim()) {
        Some(version) if version.is_supported() => TartAnswer::Usable(version.to_string()),
        Some(version) => TartAnswer::Outdated(version.to_string()),
        None => TartAnswer::Broken(output.message()),
    })
}

/// `None` on a Mac that has not joined.
async fn api_server(settings: &AgentSettings) -> Option<ApiAnswer> {
    if !settings.kubeconfig.exists() {
        return None;
    }
    let answer = match node_watch::client(settings).await {
        Ok(client) => timeout(DEADLINE, ask(client)).await.unwrap_or_else(|_| {
            ApiAnswer::Silent(format!("it gave no answer within {} s", DEADLINE.as_secs()))
        }),
        Err(error) => ApiAnswer::Silent(chain(&error)),
    };
    Some(answer)
}

async fn ask(client: Client) -> ApiAnswer {
    let request = match Request::get("/version").body(Body::empty()) {
        Ok(request) => request,
        Err(error) => return ApiAnswer::Silent(error.to_string()),
    };
    match client.send(request).await {
        Ok(response) => {
            let date = response.headers().get("date").and_then(|date| date.to_str().ok());
            let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
            ApiAnswer::Answered(date.map(|date| date.timestamp().as_second() - Timestamp::now().as_second()))
        }
        Err(error) => ApiAnswer::Silent(chain(&error)),
    }
}
