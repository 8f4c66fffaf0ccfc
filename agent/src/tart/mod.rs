//! The `tart` program: its arguments, deadlines, output and failures. No other module knows them.

mod cache;
mod call;
mod call_record;
mod credential;
mod error;
mod home;
mod image_content;
mod list;
mod lock;
mod own_pulls;
mod partial;
mod retry_torn_config;
mod share;
mod stale_calls;
mod version;

pub(crate) use cache::CachedImage;
pub(crate) use credential::Credential;
pub(crate) use error::{Fault, TartError, reason, running_vms};
pub(crate) use home::{HomeError, check as check_home};
pub(crate) use image_content::{CheckedContent, ContentError};
pub(crate) use list::VmSource;
pub(crate) use lock::{VmLock, touched, vm_lock};
pub(crate) use own_pulls::OwnPulls;
pub(crate) use partial::{KeptPartial, Partial};
pub(crate) use share::Share;
pub(crate) use stale_calls::kill_stale_calls;
pub(crate) use version::TartVersion;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use crate::fs::file::{self, FileError};
use crate::names::{BaseName, ImageDigest, VmName, full_name};
use crate::os::dhcp_leases::MacAddress;
use crate::os::process_table::TableError;

const QUICK: Duration = Duration::from_secs(30);
/// `tart --version` reads no file and waits for no lock.
const VERSION: Duration = Duration::from_secs(10);
const CLONE: Duration = Duration::from_mins(5);
const DELETE: Duration = Duration::from_mins(5);
/// The deadline of a pull, with the time that tart waits for other pulls.
pub(crate) const PULL: Duration = Duration::from_hours(2);

/// A disk that reads 100 MB a second has read 180 GB by then.
const CHECK: Duration = Duration::from_mins(30);

/// More calls than are ever under way at once.
const ALL_CALLS: u32 = 10_000;

/// A `tart` program and the home directory that it works in.
#[derive(Debug, Clone)]
pub(crate) struct Tart {
    program: PathBuf,
    home: PathBuf,
    calls: Arc<Semaphore>,
}

/// The size of a VM. What is `None` stays as in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Size {
    pub(crate) cpu: Option<u32>,
    pub(crate) memory_mib: Option<u64>,
}

/// How large the VMs of an image are, as the image says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageSize {
    pub(crate) cpu: u32,
    pub(crate) cpu_min: u32,
    pub(crate) memory_mib: u64,
    pub(crate) memory_min_mib: u64,
}

/// The serial number of a VM, by which Apple's services know a Mac.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Serial {
    /// One of its own.
    #[default]
    Random,
    /// That of its image, as all VMs of the image have.
    Image,
}

impl FromStr for Serial {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "random" => Ok(Self::Random),
            "image" => Ok(Self::Image),
            _ => Err(format!("must be `random` or `image`, not `{text}`")),
        }
    }
}

/// The part of a VM's configuration that the agent reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    mac_address: String,
}

/// The part of `config.json` that says how large a VM is. tart takes a missing minimum for none.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SizeConfig {
    cpu_count: u32,
    cpu_count_min: u32,
    memory_size: u64,
    memory_size_min: u64,
}

impl From<SizeConfig> for ImageSize {
    fn from(config: SizeConfig) -> Self {
        Self {
            cpu: config.cpu_count,
            cpu_min: config.cpu_count_min,
            memory_mib: config.memory_size >> 20,
            memory_min_mib: config.memory_size_min.div_ceil(1 << 20),
        }
    }
}

impl Tart {
    /// The program at `program`, with the home directory that tart itself would use.
    pub(crate) fn new(program: &Path) -> Self {
        let home = match std::env::var_os("TART_HOME").filter(|home| !home.is_empty()) {
            Some(home) => PathBuf::from(home),
            None => std::env::home_dir().unwrap_or_else(|| PathBuf::from("/")).join(".tart"),
        };
        Self::with_home(program, home)
    }

    #[cfg(test)]
    pub(crate) fn in_home(program: &Path, home: &Path) -> Self {
        Self::with_home(program, home.to_owned())
    }

    fn with_home(program: &Path, home: PathBuf) -> Self {
        Self { program: program.to_owned(), home, calls: Arc::new(Semaphore::new(ALL_CALLS as usize)) }
    }

    /// Waits until no call but pulls and VMs runs, and starts no other from then on: this process is about to end.
    pub(crate) async fn retire(&self) {
        if let Ok(calls) = self.calls.acquire_many(ALL_CALLS).await {
            calls.forget();
        }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The directory of a VM, whether or not it exists.
    pub(crate) fn vm_dir(&self, vm: &VmName) -> PathBuf {
        self.home.join("vms").join(vm.to_string())
    }

    /// The directory with its VMs and images.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Whether the directories of VMs and images can be read: their disk may be away for a moment.
    pub(crate) fn is_readable(&self) -> bool {
        [self.home.join("vms"), self.cache()].iter().all(|dir| std::fs::read_dir(dir).is_ok())
    }

    /// Whether a path is on the disk of VMs and images, so that deleting an image frees space there.
    pub(crate) fn shares_disk_with(&self, path: &Path) -> bool {
        // A path that does not exist yet will be on the disk of its parent.
        let device = |path: &Path| path.ancestors().find_map(|path| path.metadata().ok()).map(|it| it.dev());
        device(path) == device(&self.home)
    }

    /// The names of all VMs, or of all images. tart fails if it cannot read one of them.
    pub(crate) async fn list(&self, source: VmSource) -> Result<Vec<String>, TartError> {
        let printed = self.call(&["list", "--source", source.flag(), "--format", "json"], QUICK).await?;
        list::names(&printed, source).ok_or_else(|| TartError::garbage("list", &printed))
    }

    /// The names of the VMs of Pods that have a directory. `tart list` leaves out a VM that lacks a file, as after a deletion that was
    /// cut short.
    pub(crate) fn vm_dirs(&self) -> io::Result<Vec<VmName>> {
        self.named_dirs()
    }

    /// The same of base VMs.
    pub(crate) fn base_dirs(&self) -> io::Result<Vec<BaseName>> {
        self.named_dirs()
    }

    fn named_dirs<N: FromStr>(&self) -> io::Result<Vec<N>> {
        let entries = match std::fs::read_dir(self.home.join("vms")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()));
        }
        Ok(names)
    }

    /// Removes the rest of a VM without a configuration, which `tart delete` does not know.
    pub(crate) fn remove_rest(&self, vm: &VmName) -> io::Result<()> {
        self.remove_without_config(&vm.to_string())
    }

    /// The same of a base VM.
    pub(crate) fn remove_rest_of_base(&self, base: &BaseName) -> io::Result<()> {
        self.remove_without_config(&base.to_string())
    }

    fn remove_without_config(&self, name: &str) -> io::Result<()> {
        let vms = self.home.join("vms");
        if vms.join(name).join("config.json").exists() {
            return Ok(());
        }
        crate::fs::remove::remove_at(&vms, name)
    }

    pub(crate) async fn version(&self) -> Result<TartVersion, TartError> {
        let printed = self.call(&["--version"], VERSION).await?;
        let version = printed.trim();
        TartVersion::parse(version).ok_or_else(|| TartError::garbage("--version", version))
    }

    /// The digest of a cached image; `None` when the image is not in the cache.
    pub(crate) async fn cached_digest(&self, image: &str) -> Result<Option<ImageDigest>, TartError> {
        match self.call(&["fqn", image], QUICK).await {
            Ok(printed) => ImageDigest::parse(printed.trim())
                .map(Some)
                .ok_or_else(|| TartError::garbage("fqn", printed.trim())),
            Err(error) if error.fault() == Some(Fault::NotCached) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pulls an image into the cache, with a credential or with those of the host. tart asks the registry each time where a tag leads.
    ///
    /// `on_progress` gets the percentage that has arrived, once tart fetches the image. It gets none while tart waits for another pull
    /// of the image.
    pub(crate) async fn pull(
        &self,
        image: &str,
        credential: Option<&Credential>,
        mut on_progress: impl FnMut(u8),
    ) -> Result<(), TartError> {
        let mut command = self.command(&["pull", image]);
        if let Some(Credential { host, username, password }) = credential {
            // Without the host's name, tart would send the password to any registry.
            command.env("TART_REGISTRY_HOSTNAME", host);
            command.env("TART_REGISTRY_USERNAME", username).env("TART_REGISTRY_PASSWORD", password);
        }
        let on_line = |line: &str| {
            let percent = line.trim().strip_suffix('%').and_then(|number| number.parse().ok());
            if let Some(percent) = percent.or_else(|| line.starts_with("pulling disk (").then_some(0)) {
                on_progress(percent);
            }
        };
        call::call_with_lines(command, PULL, on_line).await.map(drop)
    }

    /// The running pulls in this home that an agent has started.
    pub(crate) fn own_pulls(&self) -> Result<OwnPulls, TableError> {
        OwnPulls::read(&self.home)
    }

    /// Locks what has arrived of an image that no tart pulls. tart does not delete it while it is locked.
    pub(crate) fn keep_partial(&self, image: &str) -> io::Result<Partial> {
        partial::keep(&self.home, &full_name(image))
    }

    /// Has tart delete all unlocked partial downloads, as it does before every command but a pull and a clone.
    pub(crate) async fn collect_garbage(&self) -> Result<(), TartError> {
        self.call(&["list", "--source", VmSource::Local.flag(), "--quiet"], QUICK).await.map(drop)
    }

    /// Whether a tart is cloning a VM.
    pub(crate) fn is_cloning(&self) -> io::Result<bool> {
        partial::is_cloning(&self.home.join("tmp"))
    }

    /// Clones a VM from a cached image. tart overwrites an existing VM of that name.
    pub(crate) async fn clone_image(&self, image: &str, vm: &VmName) -> Result<(), TartError> {
        // tart would pull it, with the host's credentials, and without a record of the agent.
        if !ImageDigest::parse(image).is_some_and(|digest| self.has_image(&digest)) {
            return Err(TartError::NotCached(image.to_owned()));
        }
        self.call_for_all(&["clone", image, &vm.to_string()], CLONE).await.map(drop)
    }

    /// Clones the base VM of a cached image. It is complete or absent: tart clones under another name, and then renames.
    pub(crate) async fn make_base(&self, image: &ImageDigest, base: &BaseName) -> Result<(), TartError> {
        self.call_for_all(&["clone", &image.to_string(), &base.to_string()], CLONE).await.map(drop)
    }

    pub(crate) fn has_base(&self, base: &BaseName) -> bool {
        cache::is_complete(&self.base_dir(base))
    }

    /// The directory of a base VM, whether or not it exists.
    pub(crate) fn base_dir(&self, base: &BaseName) -> PathBuf {
        self.home.join("vms").join(base.to_string())
    }

    /// Clones a VM from a base VM, as [`clone_image`](Self::clone_image) does from an image.
    pub(crate) async fn clone_base(&self, base: &BaseName, vm: &VmName) -> Result<(), TartError> {
        self.call_for_all(&["clone", &base.to_string(), &vm.to_string()], CLONE).await.map(drop)
    }

    /// Gives a VM its own MAC address, a serial number, and its size.
    pub(crate) async fn configure(&self, vm: &VmName, size: Size, serial: Serial) -> Result<(), TartError> {
        let mut args = vec!["set".to_owned(), vm.to_string(), "--random-mac".into()];
        if serial == Serial::Random {
            args.push("--random-serial".into());
        }
        if let Some(cpu) = size.cpu {
            args.extend(["--cpu".into(), cpu.to_string()]);
        }
        if let Some(memory) = size.memory_mib {
            args.extend(["--memory".into(), memory.to_string()]);
        }
        self.call(&args, QUICK).await.map(drop)
    }

    /// Starts a VM; the child lives as long as the VM does.
    pub(crate) fn run(&self, vm: &VmName, shares: &[Share]) -> Result<Child, TartError> {
        let mut command = self.command(&["run", &vm.to_string(), "--no-graphics", "--no-audio"]);
        // Else the guest could read and change the clipboard of the user at the Mac's screen, and so those of other guests.
        command.arg("--no-clipboard");
        command.args(["--root-disk-opts", "caching=cached"]);
        for Share { name, path, read_only, .. } in shares {
            let mut share = std::ffi::OsString::from(format!("--dir={name}:"));
            share.push(path);
            if *read_only {
                share.push(":ro");
            }
            command.arg(share);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn().map_err(|source| TartError::Spawn { program: self.program.clone(), source })
    }

    /// The MAC address of a VM. `tart run` changes it when another VM has the same.
    pub(crate) fn mac_address(&self, vm: &VmName) -> io::Result<MacAddress> {
        let config = std::fs::read(self.vm_dir(vm).join("config.json"))?;
        let config: Config = serde_json::from_slice(&config)?;
        config.mac_address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The size of an image's VMs: of its base VM, or of the image itself when a user has deleted that.
    pub(crate) fn image_size(&self, base: &BaseName, image: &ImageDigest) -> Result<ImageSize, FileError> {
        let of = |dir: PathBuf| file::read::<SizeConfig>(&dir.join("config.json"));
        let config = match of(self.base_dir(base))? {
            Some(config) => config,
            None => of(cache::dir(&self.cache(), image))?.unwrap_or_default(),
        };
        Ok(config.into())
    }

    /// Stops a VM, and kills it after `grace`; a VM that does not run is fine.
    pub(crate) async fn stop(&self, vm: &VmName, grace: Duration) -> Result<(), TartError> {
        let seconds = grace.as_secs().to_string();
        let result = self.call(&["stop", &vm.to_string(), "--timeout", &seconds], grace + QUICK).await;
        accept(result, &[Fault::MissingVm, Fault::NotRunning])
    }

    /// Deletes a VM; one that does not exist is fine.
    pub(crate) async fn delete(&self, vm: &VmName) -> Result<(), TartError> {
        accept(self.call(&["delete", &vm.to_string()], DELETE).await, &[Fault::MissingVm])
    }

    /// Deletes a base VM; one that does not exist is fine.
    pub(crate) async fn delete_base(&self, base: &BaseName) -> Result<(), TartError> {
        accept(self.call(&["delete", &base.to_string()], DELETE).await, &[Fault::MissingVm])
    }

    /// Deletes a tag from the cache, and the image with its last tag. A digest deletes the image and all its tags. One that does not exist
    /// is fine.
    pub(crate) async fn delete_image(&self, name: &str) -> Result<(), TartError> {
        accept(self.call(&["delete", name], DELETE).await, &[Fault::MissingVm])
    }

    /// All images in the cache, those of other programs included.
    pub(crate) fn cached_images(&self) -> io::Result<Vec<CachedImage>> {
        cache::images(&self.cache())
    }

    /// Compares the files of a cached image with its manifest. That reads all of it, so that a large image takes a minute.
    pub(crate) async fn check_content(&self, image: &ImageDigest) -> Result<CheckedContent, ContentError> {
        image_content::check_within(cache::dir(&self.cache(), image), image.hex().to_owned(), CHECK).await
    }

    pub(crate) fn has_image(&self, image: &ImageDigest) -> bool {
        cache::has(&self.cache(), image)
    }

    /// The inode of an image's directory in the cache. It changes when the image is deleted and pulled again.
    pub(crate) fn image_inode(&self, image: &ImageDigest) -> Option<u64> {
        cache::inode(&self.cache(), image)
    }

    /// Whether an image was pulled by its digest. tart keeps such an image without any tag.
    pub(crate) fn is_explicitly_pulled(&self, image: &ImageDigest) -> bool {
        cache::is_explicitly_pulled(&self.cache(), image)
    }

    /// The digests in the cache of an image's repository.
    pub(crate) fn cached_siblings(&self, image: &str) -> io::Result<Vec<String>> {
        cache::siblings(&self.cache(), image)
    }

    /// The size of a base VM's files on disk, with blocks that they share with its image and its clones.
    pub(crate) fn base_size(&self, base: &BaseName) -> u64 {
        cache::size(&self.base_dir(base))
    }

    fn cache(&self) -> PathBuf {
        self.home.join("cache/OCIs")
    }

    async fn call<A: AsRef<std::ffi::OsStr>>(
        &self,
        args: &[A],
        limit: Duration,
    ) -> Result<String, TartError> {
        // An error would mean that the semaphore was closed, which no code does.
        let _call = self.calls.acquire().await;
        call::call(self.command(args), limit).await
    }

    fn command<A: AsRef<std::ffi::OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env("TART_HOME", &self.home)
            .env(stale_calls::HOME, &self.home)
            // The agent collects images; tart must not delete any to free space.
            .env("TART_NO_AUTO_PRUNE", "1")
            // tart prints progress in lines instead of moving the cursor.
            .env("CI", "1")
            // Credentials come from the Pod, never from the agent's own environment.
            .env_remove("TART_REGISTRY_HOSTNAME")
            .env_remove("TART_REGISTRY_USERNAME")
            .env_remove("TART_REGISTRY_PASSWORD");
        command
    }
}

fn accept(result: Result<String, TartError>, harmless: &[Fault]) -> Result<(), TartError> {
    match result {
        Err(error) if error.fault().is_some_and(|fault| harmless.contains(&fault)) => Ok(()),
        other => other.map(drop),
    }
}
