//! This Mac as a Node: the object that the agent registers, its status and its heartbeat.

/// An enum whose values are fixed words in the API.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($variant),+ }

        impl $name {
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) mod address;
pub(crate) mod capacity;
pub(crate) mod conditions;
pub(crate) mod controller;
pub(crate) mod health;
mod images;
pub(crate) mod labels;
pub(crate) mod lease;
pub(crate) mod node_info;
pub(crate) mod object;
pub(crate) mod signals;
pub(crate) mod start_failures;
pub(crate) mod taints;
