//! What Scaleway says of servers, images and keys. A field that a decision needs must be there: what is missing never means nothing.

use serde::Deserialize;

use crate::host::Secret;
use crate::names::HostId;

/// A server.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Server {
    /// Its id.
    pub(crate) id: HostId,
    /// What it is called.
    pub(crate) name: String,
    /// Such as `M2-L`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// What it is doing, in Scaleway's word.
    pub(crate) status: String,
    /// Whether it was ever set up.
    pub(crate) delivered: bool,
    /// Whether an operator has asked for its deletion.
    #[serde(default)]
    pub(crate) deletion_scheduled: bool,
    /// Its address.
    #[serde(default)]
    pub(crate) ip: Option<String>,
    /// Its user.
    pub(crate) ssh_username: String,
    /// The user's password, if it is shown.
    #[serde(default)]
    pub(crate) sudo_password: Secret,
    /// An address for screen sharing, which may have the password.
    #[serde(default)]
    pub(crate) vnc_url: Secret,
    /// What it is installed with.
    #[serde(default)]
    pub(crate) os: Option<Image>,
}

/// An image of macOS.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Image {
    /// Its id.
    pub(crate) id: String,
    /// Such as `macos-tahoe-26.6`.
    pub(crate) name: String,
    /// Its family: documented as a number, but in fact a name.
    #[serde(default)]
    pub(crate) family: String,
    /// Whether it is a preview.
    #[serde(default)]
    pub(crate) is_beta: bool,
    /// Such as `26.6`.
    #[serde(default)]
    pub(crate) version: String,
}

/// A key of the project.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SshKey {
    /// Its id.
    pub(crate) id: HostId,
    /// Its name.
    pub(crate) name: String,
    /// As in `authorized_keys`.
    pub(crate) public_key: String,
}

/// A page of a list.
pub(super) trait Page: for<'a> Deserialize<'a> {
    type Item;
    fn take(self) -> (Vec<Self::Item>, usize);
}

macro_rules! page {
    ($page:ident $item:ident $field:ident) => {
        #[derive(Debug, Deserialize)]
        pub(super) struct $page {
            $field: Vec<$item>,
            total_count: usize,
        }

        impl Page for $page {
            type Item = $item;

            fn take(self) -> (Vec<$item>, usize) {
                (self.$field, self.total_count)
            }
        }
    };
}

page!(Servers Server servers);
page!(Images Image os);
page!(SshKeys SshKey ssh_keys);
