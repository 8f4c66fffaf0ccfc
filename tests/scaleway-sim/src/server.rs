//! What the simulated Scaleway has: servers, images, keys.

use std::time::Instant;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a server is doing, in Scaleway's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is being set up for the first time.
    Starting,
    /// It runs.
    Ready,
    /// It needs Scaleway's staff.
    Error,
    /// It restarts.
    Rebooting,
    /// It is being changed.
    Updating,
    /// Its account is closed.
    Locked,
    /// It is being installed anew.
    Reinstalling,
    /// It does something else.
    Busy,
}

impl Status {
    /// The word in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Error => "error",
            Self::Rebooting => "rebooting",
            Self::Updating => "updating",
            Self::Locked => "locked",
            Self::Reinstalling => "reinstalling",
            Self::Busy => "busy",
        }
    }

    pub(crate) fn is_transient(self) -> bool {
        !matches!(self, Self::Ready | Self::Error | Self::Locked)
    }
}

/// How the API shows a server's password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PasswordView {
    /// In `sudo_password` and in `vnc_url`.
    Shown,
    /// `sudo_password` is empty; it is in `vnc_url`, percent-encoded.
    InVncUrl,
    /// `sudo_password` and the password in `vnc_url` are `<sealed>`.
    Sealed,
    /// `sudo_password` is empty, and all of `vnc_url` is `<sealed>`.
    AllSealed,
}

/// An image of macOS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Its id.
    pub id: String,
    /// Such as `macos-tahoe-26.6`.
    pub name: String,
    /// As the live API has it: a name.
    pub family: String,
    /// Whether it is a preview.
    pub is_beta: bool,
    /// Such as `26.6`.
    pub version: String,
    /// The types of server that it runs on.
    pub server_types: Vec<String>,
}

impl Image {
    /// An image for all types that tests use.
    pub fn new(name: &str, family: &str, version: &str) -> Self {
        Self {
            id: crate::world::uuid(),
            name: name.to_owned(),
            family: family.to_owned(),
            is_beta: false,
            version: version.to_owned(),
            server_types: vec!["M1-M".to_owned(), "M2-M".to_owned(), "M2-L".to_owned()],
        }
    }

    pub(crate) fn json(&self) -> Value {
        let types: Vec<Value> = self
            .server_types
            .iter()
            .map(|server_type| json!({"server_type": server_type, "fast_delivery": true}))
            .collect();
        json!({
            "id": self.id, "name": self.name, "label": self.name, "image_url": "", "family": self.family,
            "is_beta": self.is_beta, "version": self.version, "xcode_version": "", "compatible_server_types": self.server_types,
            "supported_server_types": types,
        })
    }
}

/// A key of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SshKey {
    /// Its id.
    pub id: String,
    /// Its name, which need not be its own.
    pub name: String,
    /// As in `authorized_keys`.
    pub public_key: String,
    /// Whose it is.
    pub project_id: String,
}

/// A server.
#[derive(Debug, Serialize)]
pub struct Server {
    /// Its id.
    pub id: String,
    /// Its zone.
    pub zone: String,
    /// What it is called. Several may have one name.
    pub name: String,
    /// Such as `M2-L`.
    #[serde(rename = "type")]
    pub server_type: String,
    /// Whose it is.
    pub project_id: String,
    /// Its address.
    pub ip: String,
    /// What it is doing.
    pub status: Status,
    /// Whether it was ever set up.
    pub delivered: bool,
    /// Whether it goes when it may.
    pub deletion_scheduled: bool,
    /// The image that it was installed with.
    pub image: Image,
    /// The user's password.
    #[serde(skip)]
    pub password: String,
    /// How the API shows it.
    pub password_view: PasswordView,
    /// How often it was installed since it is there.
    pub installs: u32,
    /// The public keys that it was installed with.
    pub authorized_keys: Vec<String>,
    /// When it was ordered.
    #[serde(skip)]
    pub created_at: Timestamp,
    /// Before this time it cannot be deleted: Apple lets Macs by the day.
    #[serde(skip)]
    pub deletable_at: Timestamp,
    /// When a change ends by itself.
    #[serde(skip)]
    pub(crate) changes_until: Option<Instant>,
    /// A Mac behind its address.
    #[serde(skip)]
    pub(crate) mac: Option<crate::attach::Attachment>,
    /// Whether it had a Mac behind its address when it was installed anew. It is ready when it has one again.
    pub(crate) wants_mac: bool,
}

impl Server {
    pub(crate) fn json(&self) -> Value {
        let encoded: String =
            form_urlencoded::byte_serialize(self.password.as_bytes()).collect::<String>().replace('+', "%20");
        let vnc = |password: &str| format!("vnc://m1:{password}@{}:5900", self.ip);
        let (sudo_password, vnc_url) = match self.password_view {
            PasswordView::Shown => (self.password.as_str(), vnc(&encoded)),
            PasswordView::InVncUrl => ("", vnc(&encoded)),
            PasswordView::Sealed => ("<sealed>", vnc("%3Csealed%3E")),
            PasswordView::AllSealed => ("", "<sealed>".to_owned()),
        };
        json!({
            "id": self.id, "type": self.server_type, "name": self.name, "project_id": self.project_id,
            "organization_id": self.project_id, "ip": self.ip, "vnc_url": vnc_url, "ssh_username": "m1",
            "sudo_password": sudo_password, "vnc_port": 5900, "os": self.image.json(), "status": self.status.word(),
            "created_at": self.created_at.to_string(), "updated_at": self.created_at.to_string(),
            "deletable_at": self.deletable_at.to_string(), "deletion_scheduled": self.deletion_scheduled,
            "zone": self.zone, "delivered": self.delivered, "vpc_status": "vpc_disabled",
            "commitment": null, "public_bandwidth_bps": 1_000_000_000_u64, "tags": [], "applied_runner_configurations": null,
        })
    }
}
