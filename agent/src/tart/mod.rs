//! The `tart` program: its argument lists, time limits, output and failures. Nothing else in the tree knows them.

mod cache;
mod call;
mod credential;
mod error;
mod list;
mod lock;
mod own_pulls;
mod partial;
mod retry_torn_config;
mod share;
mod stale_calls;
mod version;

pub(crate) use cache::CachedImage;
pub(crate) use call::TartOutput;
pub(crate) use credential::Credential;
pub(crate) use error::{Fault, TartError, running_vms};
pub(crate) use list::VmSource;
pub(crate) use lock::{VmLock, touched};
pub(crate) use own_pulls::OwnPulls;
pub(crate) use partial::{KeptPartial, Partial};
pub(crate) use share::Share;
pub(crate) use stale_calls::end_overdue_calls;
pub(crate) use version::TartVersion;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use crate::names::{BaseName, ImageDigest, VmName, full_name};
use crate::os::process_table::TableError;

const QUICK: Duration = Duration::from_secs(30);
/// It reads nothing and waits for nobody.
const VERSION: Duration = Duration::from_secs(10);
const CLONE: Duration = Duration::from_mins(5);
const DELETE: Duration = Duration::from_mins(5);
/// How long a pull may take, with the time that it waits for others.
pub(crate) const PULL: Duration = Duration::from_hours(2);

/// More calls than are ever under way at once.
const ALL_CALLS: u32 = 10_000;

/// A `tart` program and the home directory that it works in.
#[derive(Debug, Clone)]
pub(crate) struct Tart {
    program: PathBuf,
    home: PathBuf,
    calls: Arc<Semaphore>,
}

/// What a VM gets that its image does not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Size {
    /// Cores; the image's own number when absent.
    pub(crate) cpu: Option<u32>,
    /// Memory in MiB; the image's own size when absent.
    pub(crate) memory_mib: Option<u64>,
}

impl Tart {
    /// The program at `program`, with the home directory that it finds by itself.
    pub(crate) fn new(program: &Path) -> Self {
        let home = match std::env::var_os("TART_HOME").filter(|home| !home.is_empty()) {
            Some(home) => PathBuf::from(home),
            None => std::env::home_dir().unwrap_or_else(|| PathBuf::from("/")).join(".tart"),
        };
        Self::with_home(program, home)
    }

    /// The program at `program`, with a home directory for a test.
    #[cfg(test)]
    pub(crate) fn in_home(program: &Path, home: &Path) -> Self {
        Self::with_home(program, home.to_owned())
    }

    fn with_home(program: &Path, home: PathBuf) -> Self {
        Self { program: program.to_owned(), home, calls: Arc::new(Semaphore::new(ALL_CALLS as usize)) }
    }

    /// Waits until no call but pulls and VMs is under way, and lets no other begin from then on: this process is about to end.
    pub(crate) async fn retire(&self) {
        if let Ok(calls) = self.calls.acquire_many(ALL_CALLS).await {
            calls.forget();
        }
    }

    /// The program itself.
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

    /// Whether VMs and images can be seen: their volume may be away for a moment.
    pub(crate) fn is_readable(&self) -> bool {
        [self.home.join("vms"), self.cache()].iter().all(|dir| std::fs::read_dir(dir).is_ok())
    }

    /// Whether a path is on the volume that VMs and images are on, so that an image which goes makes room there.
    pub(crate) fn shares_volume_with(&self, path: &Path) -> bool {
        // What is not there yet comes to be where its parent is.
        let device = |path: &Path| path.ancestors().find_map(|path| path.metadata().ok()).map(|it| it.dev());
        device(path) == device(&self.home)
    }

    /// The names of all VMs, or of all images. One of them that cannot be read fails it all.
    pub(crate) async fn list(&self, source: VmSource) -> Result<Vec<String>, TartError> {
        let output = self.call(&["list", "--source", source.flag(), "--format", "json"], QUICK).await?;
        list::names(&output.stdout, source).ok_or_else(|| TartError::garbage("list", &output.stdout))
    }

    /// The names of the VMs of which there is anything on the disk. tart itself is silent about those that lack a file, as after
    /// a deletion that was cut short.
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

    /// What tart's own locks say of the VM in a directory.
    pub(crate) fn lock_of(&self, dir: &Path) -> io::Result<VmLock> {
        lock::look(dir)
    }

    /// Removes what is left of a VM that tart no longer takes for one: tart deletes nothing that lacks its configuration.
    pub(crate) fn remove_rest(&self, vm: &VmName) -> io::Result<()> {
        self.remove_unless_whole(&vm.to_string())
    }

    /// The same of a base VM.
    pub(crate) fn remove_rest_of_base(&self, base: &BaseName) -> io::Result<()> {
        self.remove_unless_whole(&base.to_string())
    }

    fn remove_unless_whole(&self, name: &str) -> io::Result<()> {
        let vms = self.home.join("vms");
        if vms.join(name).join("config.json").exists() {
            return Ok(());
        }
        crate::fs::remove::remove_at(&vms, name)
    }

    /// The version that the program says it has.
    pub(crate) async fn version(&self) -> Result<TartVersion, TartError> {
        let output = self.call(&["--version"], VERSION).await?;
        let version = output.stdout.trim();
        TartVersion::parse(version).ok_or_else(|| TartError::garbage("--version", version))
    }

    /// The digest that a cached image has, or `None` when it is not in the cache.
    pub(crate) async fn cached_digest(&self, image: &str) -> Result<Option<ImageDigest>, TartError> {
        match self.call(&["fqn", image], QUICK).await {
            Ok(output) => ImageDigest::parse(output.stdout.trim())
                .map(Some)
                .ok_or_else(|| TartError::garbage("fqn", output.stdout.trim())),
            Err(error) if error.fault() == Some(Fault::NotCached) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fetches an image into the cache, as a user of its registry, or with what the host has for it; a tag is looked up anew each time.
    ///
    /// `arrived` is told how much of it is here, in percent, from its first moment on; never while tart waits until somebody else has
    /// pulled the image.
    pub(crate) async fn pull(
        &self,
        image: &str,
        credential: Option<&Credential>,
        mut arrived: impl FnMut(u8),
    ) -> Result<(), TartError> {
        let mut command = self.command(&["pull", image]);
        if let Some(Credential { host, username, password }) = credential {
            // Without the host's name tart would offer the password to any registry.
            command.env("TART_REGISTRY_HOSTNAME", host);
            command.env("TART_REGISTRY_USERNAME", username).env("TART_REGISTRY_PASSWORD", password);
        }
        let hear = |line: &str| {
            let percent = line.trim().strip_suffix('%').and_then(|number| number.parse().ok());
            if let Some(percent) = percent.or_else(|| line.starts_with("pulling disk (").then_some(0)) {
                arrived(percent);
            }
        };
        call::call_heard(command, PULL, hear).await.map(drop)
    }

    /// The pulls that an agent has begun in this home, and that are still under way.
    pub(crate) fn own_pulls(&self) -> Result<OwnPulls, TableError> {
        OwnPulls::look(&self.home)
    }

    /// What has arrived of an image that nobody pulls now, kept from being taken for garbage for as long as it is held.
    pub(crate) fn keep_partial(&self, image: &str) -> io::Result<Partial> {
        partial::keep(&self.home, &full_name(image))
    }

    /// Has tart remove what nobody has locked of all that is not whole. It does so before every command but a pull and a clone.
    pub(crate) async fn collect_garbage(&self) -> Result<(), TartError> {
        self.call(&["list", "--source", VmSource::Local.flag(), "--quiet"], QUICK).await.map(drop)
    }

    /// Whether any VM is being cloned.
    pub(crate) fn is_cloning(&self) -> io::Result<bool> {
        partial::is_cloning(&self.home.join("tmp"))
    }

    /// Makes a VM from a cached image. An existing VM of that name is overwritten without a word: the caller owns the name.
    pub(crate) async fn clone_image(&self, image: &str, vm: &VmName) -> Result<(), TartError> {
        // tart would pull it, with whatever credentials the host has, and unknown to anyone.
        if !ImageDigest::parse(image).is_some_and(|digest| self.has_image(&digest)) {
            return Err(TartError::NotCached(image.to_owned()));
        }
        self.call_for_all(&["clone", image, &vm.to_string()], CLONE).await.map(drop)
    }

    /// Makes the base VM of a cached image. It is whole or not there: tart clones under another name, and then moves.
    pub(crate) async fn make_base(&self, image: &ImageDigest, base: &BaseName) -> Result<(), TartError> {
        self.call_for_all(&["clone", &image.to_string(), &base.to_string()], CLONE).await.map(drop)
    }

    /// Whether there is a base VM. To look is cheaper than to ask tart, and is done for each VM that is made.
    pub(crate) fn has_base(&self, base: &BaseName) -> bool {
        cache::is_whole(&self.base_dir(base))
    }

    /// The directory of a base VM, whether or not it exists.
    pub(crate) fn base_dir(&self, base: &BaseName) -> PathBuf {
        self.home.join("vms").join(base.to_string())
    }

    /// Makes a VM from a base VM, as [`clone_image`](Self::clone_image) does from an image.
    pub(crate) async fn clone_base(&self, base: &BaseName, vm: &VmName) -> Result<(), TartError> {
        self.call_for_all(&["clone", &base.to_string(), &vm.to_string()], CLONE).await.map(drop)
    }

    /// Gives a VM an identity of its own, and its size.
    pub(crate) async fn configure(&self, vm: &VmName, size: Size) -> Result<(), TartError> {
        let mut args =
            vec!["set".to_owned(), vm.to_string(), "--random-mac".into(), "--random-serial".into()];
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
        let args =
            ["run", &vm.to_string(), "--no-graphics", "--no-audio", "--root-disk-opts", "caching=cached"];
        let mut command = self.command(&args);
        for Share { name, path, read_only, .. } in shares {
            let mut share = std::ffi::OsString::from(format!("--dir={name}:"));
            share.push(path);
            if *read_only {
                share.push(":ro");
            }
            command.arg(share);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|source| TartError::spawn(&self.program, source))
    }

    /// Waits for the address that a VM has leased, for guests without a guest agent.
    pub(crate) async fn wait_for_address(
        &self,
        vm: &VmName,
        wait: Duration,
    ) -> Result<std::net::IpAddr, TartError> {
        let seconds = wait.as_secs().to_string();
        let output = self.call(&["ip", &vm.to_string(), "--wait", &seconds], wait + QUICK).await?;
        let address = output.stdout.trim();
        address.parse().map_err(|_| TartError::garbage("ip", address))
    }

    /// Stops a VM the hard way, by force when it takes longer than `patience`; a VM that does not run is fine.
    pub(crate) async fn stop(&self, vm: &VmName, patience: Duration) -> Result<(), TartError> {
        let seconds = patience.as_secs().to_string();
        let result = self.call(&["stop", &vm.to_string(), "--timeout", &seconds], patience + QUICK).await;
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

    /// Takes a name out of the cache, and the image with it when no other name leads there; one that does not exist is fine.
    ///
    /// The name of a digest takes the image in any case, and every tag that leads there.
    pub(crate) async fn delete_image(&self, name: &str) -> Result<(), TartError> {
        accept(self.call(&["delete", name], DELETE).await, &[Fault::MissingVm])
    }

    /// The images in the cache, whoever has put them there.
    pub(crate) fn cached_images(&self) -> std::io::Result<Vec<CachedImage>> {
        cache::images(&self.cache())
    }

    /// Whether an image is in the cache.
    pub(crate) fn has_image(&self, image: &ImageDigest) -> bool {
        cache::has(&self.cache(), image)
    }

    /// The directory of an image in the cache, by a number that changes when it is deleted and pulled again.
    pub(crate) fn image_inode(&self, image: &ImageDigest) -> Option<u64> {
        cache::inode(&self.cache(), image)
    }

    /// Whether somebody has pulled an image by its digest: tart keeps such a one although no tag leads to it.
    pub(crate) fn is_explicitly_pulled(&self, image: &ImageDigest) -> bool {
        cache::is_explicitly_pulled(&self.cache(), image)
    }

    /// The digests in the cache that come from the repository of an image.
    pub(crate) fn cached_siblings(&self, image: &str) -> std::io::Result<Vec<String>> {
        cache::siblings(&self.cache(), image)
    }

    /// What the files of a base VM take, blocks that they share with its image and its clones included.
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
    ) -> Result<TartOutput, TartError> {
        // None is given back only when the process ends.
        let _call = self.calls.acquire().await;
        call::call(self.command(args), limit).await
    }

    fn command<A: AsRef<std::ffi::OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env("TART_HOME", &self.home)
            .env(stale_calls::HOME, &self.home)
            // The agent owns its image cache; tart must not make room by deleting from it.
            .env("TART_NO_AUTO_PRUNE", "1")
            // Plain progress lines instead of cursor movements.
            .env("CI", "1")
            // Credentials are a Pod's own, never what the agent happens to have been started with.
            .env_remove("TART_REGISTRY_HOSTNAME")
            .env_remove("TART_REGISTRY_USERNAME")
            .env_remove("TART_REGISTRY_PASSWORD")
            .stdin(Stdio::null())
            // A group of its own, so that a time-out reaches whatever tart has started.
            .process_group(0);
        command
    }
}

fn accept(result: Result<TartOutput, TartError>, harmless: &[Fault]) -> Result<(), TartError> {
    match result {
        Err(error) if error.fault().is_some_and(|fault| harmless.contains(&fault)) => Ok(()),
        other => other.map(drop),
    }
}
