//! The state of the simulated Scaleway, and what calls do to it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::{Call, Request};
use crate::attach::Attachment;
use crate::error::ApiError;
use crate::fault::{Effect, Rule};
use crate::server::{Image, PasswordView, Server, SshKey, Status};

/// For so long after its order a server cannot be deleted.
const FLOOR: SignedDuration = SignedDuration::from_hours(24);

/// When a server is ready that is being installed or restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Install {
    /// After this time. A server that had a Mac attached waits until it has one again.
    After(Duration),
    /// When [`World::finish_changes`] is called.
    ByHand,
}

/// What the simulated Scaleway is like.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The key that requests must have.
    pub secret_key: String,
    /// The project of new servers.
    pub project_id: String,
    /// The zones that there are.
    pub zones: Vec<String>,
    /// How long a server changes.
    pub install: Install,
    /// Whether a server can be renamed while it changes. Scaleway does not say, so it cannot.
    pub renames_while_changing: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            secret_key: "simulated-secret-key".to_owned(),
            project_id: uuid(),
            zones: vec!["fr-par-1".to_owned(), "fr-par-3".to_owned()],
            install: Install::After(Duration::from_millis(200)),
            renames_while_changing: false,
        }
    }
}

/// A server that an operator orders.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewServer {
    /// What it is called.
    pub name: String,
    /// Its zone.
    #[serde(default = "default_zone")]
    pub zone: String,
    /// Its type.
    #[serde(rename = "type", default = "default_type")]
    pub server_type: String,
    /// How the API shows its password.
    #[serde(default = "default_view")]
    pub password_view: PasswordView,
    /// The user's password.
    #[serde(default = "default_password")]
    pub password: String,
    /// The Mac behind it: where its sshd listens.
    #[serde(default)]
    pub mac: Option<SocketAddr>,
}

fn default_zone() -> String {
    "fr-par-1".to_owned()
}

fn default_type() -> String {
    "M2-L".to_owned()
}

fn default_view() -> PasswordView {
    PasswordView::InVncUrl
}

fn default_password() -> String {
    "correct horse".to_owned()
}

impl NewServer {
    /// A server of the usual type in the usual zone.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            zone: default_zone(),
            server_type: default_type(),
            password_view: default_view(),
            password: default_password(),
            mac: None,
        }
    }
}

/// A change that a call made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Write {
    /// The call's word.
    pub call: &'static str,
    /// The server.
    pub server: String,
    /// What the server was called before.
    pub name_before: String,
    /// What the server is called now.
    pub name: String,
}

/// All that the simulated Scaleway has.
#[derive(Debug)]
pub struct World {
    pub(crate) settings: Settings,
    pub(crate) servers: Vec<Server>,
    pub(crate) images: Vec<Image>,
    pub(crate) ssh_keys: Vec<SshKey>,
    rules: Vec<Rule>,
    held: Vec<Request>,
    writes: Vec<Write>,
    calls: Vec<Call>,
    last_order: Timestamp,
}

impl World {
    /// A Scaleway without servers, with two releases of macOS.
    pub fn new(settings: Settings) -> Self {
        let images = vec![
            Image::new("macos-sequoia-15.6", "Sequoia", "15.6"),
            Image::new("macos-tahoe-26.3", "Tahoe", "26.3"),
            Image::new("macos-tahoe-26.6.1", "Tahoe", "26.6.1"),
        ];
        Self {
            settings,
            servers: Vec::new(),
            images,
            ssh_keys: Vec::new(),
            rules: Vec::new(),
            held: Vec::new(),
            writes: Vec::new(),
            calls: Vec::new(),
            last_order: Timestamp::now(),
        }
    }

    /// Orders a server, which is delivered and ready at once. Says its id.
    pub fn order(&mut self, new: NewServer) -> String {
        let id = uuid();
        let number = self.servers.len();
        // Each is ordered some time after the one before.
        self.last_order += SignedDuration::from_secs(1);
        let created_at = self.last_order;
        self.servers.push(Server {
            id: id.clone(),
            zone: new.zone,
            name: new.name,
            server_type: new.server_type,
            project_id: self.settings.project_id.clone(),
            ip: format!("127.0.{}.{}", number / 250, number % 250 + 2),
            status: Status::Ready,
            delivered: true,
            deletion_scheduled: false,
            image: self
                .images
                .last()
                .cloned()
                .unwrap_or_else(|| Image::new("macos-tahoe-26.6.1", "Tahoe", "26.6.1")),
            password: new.password,
            password_view: new.password_view,
            installs: 1,
            authorized_keys: self.ssh_keys.iter().map(|key| key.public_key.clone()).collect(),
            created_at,
            deletable_at: created_at + FLOOR,
            changes_until: None,
            mac: None,
            wants_mac: false,
        });
        id
    }

    /// All servers, in the order in which they were ordered.
    pub fn servers(&mut self) -> &[Server] {
        self.settle();
        &self.servers
    }

    /// A server, to look at or to change behind the provider's back.
    pub fn server(&mut self, id: &str) -> Option<&mut Server> {
        self.settle();
        self.servers.iter_mut().find(|server| server.id == id)
    }

    /// A server is gone, as after a deletion in the console.
    pub fn remove(&mut self, id: &str) {
        self.servers.retain(|server| server.id != id);
    }

    /// The images that can be installed.
    pub fn images(&mut self) -> &mut Vec<Image> {
        &mut self.images
    }

    /// The keys of all projects.
    pub fn ssh_keys(&self) -> &[SshKey] {
        &self.ssh_keys
    }

    /// What calls have changed so far.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// How many calls of this kind have arrived.
    pub fn count(&self, call: Call) -> usize {
        self.calls.iter().filter(|made| **made == call).count()
    }

    /// How many calls have arrived.
    pub fn total(&self) -> usize {
        self.calls.len()
    }

    /// Adds a fault. The first rule that fits a call counts.
    pub fn add_rule(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// The faults that are on.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Switches all faults off. Held calls stay held.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    /// Notes a call, and says what is to happen to it.
    pub(crate) fn arrive(&mut self, call: Call) -> Option<Effect> {
        self.calls.push(call);
        let at = self.rules.iter().position(|rule| rule.call == call)?;
        let effect = self.rules[at].effect.clone();
        if let Some(times) = &mut self.rules[at].times {
            *times -= 1;
            if *times == 0 {
                self.rules.remove(at);
            }
        }
        Some(effect)
    }

    pub(crate) fn hold(&mut self, request: Request) {
        self.held.push(request);
    }

    /// Carries out the calls that were held, in their order. Says how many.
    pub fn deliver_held(&mut self) -> usize {
        let held = std::mem::take(&mut self.held);
        for request in &held {
            let _ = self.answer(request);
        }
        held.len()
    }

    /// Every server that changes is ready, unless it waits for a Mac.
    pub fn finish_changes(&mut self) {
        for server in &mut self.servers {
            if server.status.is_transient() && !server.wants_mac {
                server.status = Status::Ready;
                server.delivered = true;
                server.changes_until = None;
            }
        }
    }

    /// Ends the changes whose time has come.
    pub(crate) fn settle(&mut self) {
        let now = Instant::now();
        for server in &mut self.servers {
            if !server.wants_mac && server.changes_until.is_some_and(|until| until <= now) {
                server.status = Status::Ready;
                server.changes_until = None;
            }
        }
    }

    pub(crate) fn attach(&mut self, id: &str, mac: Attachment) -> Result<(), ApiError> {
        let server = self.server(id).ok_or_else(|| ApiError::not_found("server", id))?;
        server.ip = mac.ip().to_string();
        server.mac = Some(mac);
        server.wants_mac = false;
        Ok(())
    }

    pub(crate) fn in_zone(&mut self, zone: &str, id: &str) -> Result<&mut Server, ApiError> {
        let server = self.servers.iter_mut().find(|server| server.zone == zone && server.id == id);
        server.ok_or_else(|| ApiError::not_found("server", id))
    }

    fn wrote(&mut self, call: Call, id: &str, name_before: String) {
        let name = self.servers.iter().find(|server| server.id == id).map(|server| server.name.clone());
        self.writes.push(Write {
            call: call.word(),
            server: id.to_owned(),
            name_before,
            name: name.unwrap_or_default(),
        });
    }

    /// The last write wins, whatever the server was called before, and whatever others are called.
    pub(crate) fn update(
        &mut self,
        zone: &str,
        id: &str,
        fields: &Map<String, Value>,
    ) -> Result<&Server, ApiError> {
        let may_change = self.settings.renames_while_changing;
        let server = self.in_zone(zone, id)?;
        if server.status.is_transient() && !may_change {
            return Err(ApiError::transient_state(id, server.status.word()));
        }
        let before = server.name.clone();
        if let Some(name) = fields.get("name").and_then(Value::as_str) {
            if name.is_empty() || name.len() > 255 {
                return Err(ApiError::invalid_argument("name", "1 to 255 characters"));
            }
            name.clone_into(&mut server.name);
        }
        if let Some(is_scheduled) = fields.get("schedule_deletion").and_then(Value::as_bool) {
            server.deletion_scheduled = is_scheduled;
        }
        self.wrote(Call::UpdateServer, id, before);
        Ok(self.in_zone(zone, id)?)
    }

    pub(crate) fn reinstall(
        &mut self,
        zone: &str,
        id: &str,
        image: Option<Image>,
    ) -> Result<&Server, ApiError> {
        // Without an image, the server gets the newest of its type.
        let newest = self.images.last().cloned();
        let keys = self.ssh_keys.iter().map(|key| key.public_key.clone()).collect();
        let until = self.changes_until();
        let server = self.in_zone(zone, id)?;
        if server.status.is_transient() {
            return Err(ApiError::transient_state(id, server.status.word()));
        }
        if server.status == Status::Locked {
            return Err(ApiError::of_status(http::StatusCode::LOCKED, id));
        }
        if let Some(image) = image.or(newest) {
            server.image = image;
        }
        server.status = Status::Reinstalling;
        server.changes_until = until;
        server.installs += 1;
        server.authorized_keys = keys;
        server.wants_mac = server.mac.take().is_some();
        let name = server.name.clone();
        self.wrote(Call::ReinstallServer, id, name);
        Ok(self.in_zone(zone, id)?)
    }

    pub(crate) fn reboot(&mut self, zone: &str, id: &str) -> Result<&Server, ApiError> {
        let until = self.changes_until();
        let server = self.in_zone(zone, id)?;
        if server.status.is_transient() {
            return Err(ApiError::transient_state(id, server.status.word()));
        }
        server.status = Status::Rebooting;
        server.changes_until = until;
        let name = server.name.clone();
        self.wrote(Call::RebootServer, id, name);
        Ok(self.in_zone(zone, id)?)
    }

    fn changes_until(&self) -> Option<Instant> {
        match self.settings.install {
            Install::After(time) => Some(Instant::now() + time),
            Install::ByHand => None,
        }
    }

    pub(crate) fn delete(&mut self, zone: &str, id: &str) -> Result<(), ApiError> {
        let server = self.in_zone(zone, id)?;
        if Timestamp::now() < server.deletable_at {
            return Err(ApiError::precondition_failed(
                "unknown_precondition",
                "the server can be deleted 24 hours after its creation",
            ));
        }
        let name = server.name.clone();
        self.wrote(Call::DeleteServer, id, name);
        self.remove(id);
        Ok(())
    }

    pub(crate) fn add_ssh_key(&mut self, name: String, public_key: String, project_id: String) -> SshKey {
        let key = SshKey { id: uuid(), name, public_key, project_id };
        self.ssh_keys.push(key.clone());
        key
    }

    pub(crate) fn remove_ssh_key(&mut self, id: &str) -> Result<(), ApiError> {
        let before = self.ssh_keys.len();
        self.ssh_keys.retain(|key| key.id != id);
        if self.ssh_keys.len() == before { Err(ApiError::not_found("ssh_key", id)) } else { Ok(()) }
    }
}

/// A random UUID.
pub(crate) fn uuid() -> String {
    rand::random::<[u8; 16]>().iter().enumerate().fold(String::new(), |mut text, (at, byte)| {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
        text
    })
}
