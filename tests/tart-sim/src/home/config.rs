//! A VM's `config.json`.

use std::fs;
use std::io;
use std::path::Path;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::home::identity;
use crate::output::json;

/// The guest's operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Os {
    /// macOS, of which a Mac runs two at most.
    #[default]
    Darwin,
    /// Linux.
    Linux,
}

impl Os {
    /// The size of this system's `nvram.bin`.
    pub(crate) fn nvram_bytes(self) -> u64 {
        match self {
            Self::Darwin => 33_579_008,
            Self::Linux => 131_072,
        }
    }
}

/// The format of a VM's disk image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DiskFormat {
    /// A plain sparse file.
    #[default]
    Raw,
    /// Apple sparse image format.
    Asif,
}

/// The size of a VM's display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Display {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// `pt` or `px`, when given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<String>,
}

impl std::fmt::Display for Display {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}{}", self.width, self.height, self.unit.as_deref().unwrap_or_default())
    }
}

/// The content of `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    pub(crate) version: u32,
    pub(crate) os: Os,
    pub(crate) arch: String,
    pub(crate) cpu_count_min: u32,
    pub(crate) cpu_count: u32,
    /// Bytes.
    pub(crate) memory_size_min: u64,
    /// Bytes.
    pub(crate) memory_size: u64,
    pub(crate) mac_address: String,
    pub(crate) display: Display,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) display_refit: Option<bool>,
    #[serde(default)]
    pub(crate) disk_format: DiskFormat,
    /// The machine identifier; macOS guests only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ecid: Option<String>,
    /// macOS guests only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hardware_model: Option<String>,
}

impl Config {
    /// The configuration of a new VM. What is unique about it comes from these random numbers.
    pub(crate) fn new(os: Os, rng: &mut Rng) -> Self {
        let darwin = os == Os::Darwin;
        Self {
            version: 1,
            os,
            arch: "arm64".into(),
            cpu_count_min: if darwin { 2 } else { 4 },
            cpu_count: 4,
            memory_size_min: 4 << 30,
            memory_size: 4 << 30,
            mac_address: identity::mac_address(rng),
            display: Display { width: 1024, height: 768, unit: None },
            display_refit: None,
            disk_format: DiskFormat::Raw,
            ecid: darwin.then(|| identity::ecid(rng)),
            hardware_model: darwin.then(identity::hardware_model),
        }
    }

    /// Reads a `config.json`.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        serde_json::from_slice(&fs::read(path)?).map_err(io::Error::from)
    }

    /// Writes a `config.json` in place, so that a lock on the file stays valid.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let value = serde_json::to_value(self).map_err(Error::other)?;
        fs::write(path, json::pretty(&value)).map_err(Error::other)
    }
}
