//! The folder that stands for all registries: `TART_SIM_HOST/registry/<host>/<namespace>/<tag>/image.json`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use tart_sim::fault::{Fault, Stage};

use super::credentials::Credentials;
use super::failure::{Failure, UrlError};
use super::manifest::Manifest;
use super::name::{Reference, RemoteName};
use super::outage;
use crate::home::image::Image;
use crate::home::vm_dir::VmDir;
use crate::home::{self, copy};
use crate::host::{self, faults};

/// One registry.
#[derive(Debug)]
pub(crate) struct Registry {
    host: String,
    dir: PathBuf,
}

/// An image in a registry.
#[derive(Debug)]
pub(crate) struct RemoteImage {
    /// Its folder.
    pub(crate) dir: PathBuf,
    pub(crate) image: Image,
    pub(crate) manifest: Manifest,
}

/// `registry.json`: how a registry behaves.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Behaviour {
    /// Without valid credentials, a repository that does not exist is denied like one that is private.
    hides_missing: bool,
}

impl Registry {
    /// The registry at that host.
    pub(crate) fn new(host: &str) -> Self {
        Self { host: host.into(), dir: host::dir().join("registry").join(host) }
    }

    /// Asks for an image's manifest.
    pub(crate) fn pull_manifest(&self, name: &RemoteName) -> Result<RemoteImage, Failure> {
        outage::apply(name, Stage::Manifest, 0)?;
        self.reach()?;
        let repository = self.dir.join(&name.namespace);
        let known = self.log_in(Credentials::find(&self.host).as_ref())?;
        if !known && self.behaviour()?.hides_missing && !repository.exists() {
            return Err(Failure::Auth { code: 403 });
        }
        let found = match &name.reference {
            Reference::Tag(tag) => image(repository.join(tag))?,
            Reference::Digest(digest) => {
                let is_wrong = faults::is_on_for(Fault::WrongManifest, &name.repository());
                images(&repository)?.into_iter().find(|image| (image.manifest.digest == *digest) != is_wrong)
            }
        };
        found.ok_or(Failure::Status { when: "pulling manifest", code: 404 })
    }

    /// Tries credentials.
    pub(crate) fn ping(&self, credentials: &Credentials) -> Result<(), Failure> {
        self.reach()?;
        self.log_in(Some(credentials)).map(drop)
    }

    /// Puts a VM into the registry under this name.
    pub(crate) fn push(
        &self,
        name: &RemoteName,
        vm: &VmDir,
        labels: &[String],
    ) -> Result<RemoteImage, Failure> {
        outage::apply(name, Stage::Manifest, 0)?;
        self.reach()?;
        self.log_in(Credentials::find(&self.host).as_ref())?;
        let repository = self.dir.join(&name.namespace);
        let (new, target) =
            (repository.join(format!(".{}", home::uuid())), repository.join(name.reference.value()));
        write_image(vm, &new, labels)
            .and_then(|()| home::remove(&target))
            .and_then(|()| fs::rename(&new, &target))
            .map_err(|error| broken(&target, &error))?;
        image(target)?.ok_or(Failure::Status { when: "pushing manifest", code: 404 })
    }

    fn reach(&self) -> Result<(), Failure> {
        if self.dir.is_dir() { Ok(()) } else { Err(Failure::Url(UrlError::HostNotFound)) }
    }

    /// Whether these credentials are valid. A private registry refuses all others.
    fn log_in(&self, credentials: Option<&Credentials>) -> Result<bool, Failure> {
        let path = self.dir.join("credentials.json");
        match read_json::<Credentials>(&path)? {
            None => Ok(false),
            Some(expected) if credentials == Some(&expected) => Ok(true),
            Some(_) => Err(Failure::Auth { code: 403 }),
        }
    }

    fn behaviour(&self) -> Result<Behaviour, Failure> {
        Ok(read_json(&self.dir.join("registry.json"))?.unwrap_or_default())
    }
}

/// The image in a folder, if there is one.
fn image(dir: PathBuf) -> Result<Option<RemoteImage>, Failure> {
    let path = dir.join("image.json");
    if !path.exists() {
        return Ok(None);
    }
    let image = Image::read(&path).map_err(|error| broken(&path, &error))?;
    let manifest = Manifest::of(&dir, &image).map_err(|error| broken(&dir, &error))?;
    Ok(Some(RemoteImage { dir, image, manifest }))
}

fn images(repository: &Path) -> Result<Vec<RemoteImage>, Failure> {
    let Ok(folders) = home::entries(repository) else { return Ok(Vec::new()) };
    folders.into_iter().filter_map(|folder| image(folder).transpose()).collect()
}

fn write_image(vm: &VmDir, dir: &Path, labels: &[String]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let (config, disk_bytes) = (vm.config()?, fs::metadata(vm.disk_path())?.len());
    let mut image: Value = match fs::read(vm.image_path()) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(_) => json!({}),
    };
    image["os"] = json!(config.os);
    #[expect(clippy::cast_precision_loss, reason = "disk sizes are far below 2^53 bytes")]
    let disk_gb = disk_bytes as f64 / 1e9;
    image["diskGB"] = json!(disk_gb);
    fs::write(dir.join("image.json"), serde_json::to_vec_pretty(&image)?)?;
    fs::copy(vm.config_path(), dir.join("config.json"))?;
    if !labels.is_empty() {
        fs::write(dir.join("labels.json"), serde_json::to_vec_pretty(labels)?)?;
    }
    for (from, to) in [(vm.guest_lower_path(), "rootfs"), (vm.guest_upper_path(), "upper")] {
        if from.exists() {
            copy::tree(&from, &dir.join(to))?;
        }
    }
    Ok(())
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| broken(path, &error.into())),
        Err(_) => Ok(None),
    }
}

fn broken(path: &Path, error: &io::Error) -> Failure {
    Failure::Simulation(format!("{}: {error}", path.display()))
}
