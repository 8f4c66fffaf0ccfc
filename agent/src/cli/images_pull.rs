//! `tart-kubelet images pull`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{Uid, User};
use tokio::time::sleep;

use super::pull_printer::PullEvent;
use super::{AgentArgs, PullArgs};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::fs::lock::Lock;
use crate::image::credentials::{self, BadSecret, Login, RegistryPath};
use crate::image::pull_socket::{self, PullRequest, PullSocketError};
use crate::image::{ImageError, ImageStore, PullStarter};
use crate::metrics::Metrics;
use crate::state::{StateDir, TartHomeOwner};
use crate::tart::Tart;

/// How often the command asks an agent that has started and does not answer yet. Each look at its lock takes seconds, too.
const START_TRIES: u32 = 10;
const START_INTERVAL: Duration = Duration::from_millis(250);

/// Why no image could be asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// A password without a registry.
    #[error(
        "TART_REGISTRY_USERNAME and TART_REGISTRY_PASSWORD are for one registry: say which with TART_REGISTRY_HOSTNAME"
    )]
    NoHost,
    /// The file of credentials cannot be read.
    #[error("cannot read {}", .0.display())]
    ConfigFile(PathBuf, #[source] io::Error),
    /// The file is not a Docker config.
    #[error("{} has no credentials: it is not what `docker login` writes", .0.display())]
    Config(PathBuf, #[source] BadSecret),
    /// The state directory cannot be used.
    #[error("cannot use the state directory; name the agent's with --state-dir")]
    State(#[from] FileError),
    /// The record of images cannot be read.
    #[error("cannot look into tart's cache of images")]
    Cache(#[source] io::Error),
}

/// Why one image could not be pulled.
#[derive(Debug, thiserror::Error)]
enum PullError {
    #[error(transparent)]
    Door(PullSocketError),
    #[error("the agent that uses {} does not answer; look into its log", .0.display())]
    Silent(PathBuf),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    State(#[from] FileError),
    #[error("{} is not yours, and no agent answers: run this as the user that the agent runs as, {owner}", .dir.display())]
    Foreign { dir: PathBuf, owner: String },
    #[error(
        "there is no {}: run this without sudo, as the user that the agent is to run as, once that user has the directory",
        .0.display()
    )]
    Root(PathBuf),
}

/// Pulls images one after the other. Returns whether all are ready. The agent pulls them if it runs; else this process does, and records
/// them as the agent's own.
pub(crate) async fn pull(args: &PullArgs, mut say: impl FnMut(&PullEvent<'_>)) -> Result<bool, CommandError> {
    let all = credentials_of(args)?;
    let mut complete = true;
    for image in &args.image {
        say(&PullEvent::Begun { image });
        let fitting = credentials::fitting(image, all.iter().cloned().map(|login| (login, ())).collect());
        let credentials = fitting.into_iter().map(|(credential, ())| credential).collect();
        let question = PullRequest { image: image.clone(), credentials };
        let mut last = 0;
        let arrived = |percent: u8| {
            if percent > last {
                last = percent;
                say(&PullEvent::Arrived { image, percent });
            }
        };
        match pull_one(&args.agent, &question, arrived).await {
            Ok(digest) => say(&PullEvent::Pulled { image, digest: &digest }),
            Err(error) => {
                complete = false;
                say(&PullEvent::Failed { image, error: &chain(&error) });
            }
        }
    }
    Ok(complete)
}

async fn pull_one(
    args: &AgentArgs,
    question: &PullRequest,
    mut arrived: impl FnMut(u8),
) -> Result<String, PullError> {
    let owner = fs::metadata(&args.state_dir).ok().map(|dir| Uid::from_raw(dir.uid()));
    if let Err(refusal) =
        may_write(&args.state_dir, owner, Uid::effective(), std::env::var_os("SUDO_UID").is_some())
    {
        // This user may still ask a running agent.
        return ask(&StateDir::at(&args.state_dir), question, arrived).await?.ok_or(refusal);
    }
    let state = StateDir::open(&args.state_dir)?;
    for _ in 0..START_TRIES {
        if let Some(digest) = ask(&state, question, &mut arrived).await? {
            return Ok(digest);
        }
        if let Some(lock) = state.lock()? {
            return pull_alone(args, &state, lock, question, arrived).await;
        }
        // An agent has just started.
        sleep(START_INTERVAL).await;
    }
    Err(PullError::Silent(state.path().to_owned()))
}

/// Asks the agent of a state directory for an image; `None` if no agent answers.
async fn ask(
    state: &StateDir,
    question: &PullRequest,
    arrived: impl FnMut(u8),
) -> Result<Option<String>, PullError> {
    match pull_socket::request(&state.pull_socket_path(), question, arrived).await {
        Ok(digest) => Ok(Some(digest)),
        Err(PullSocketError::Closed(_)) => Ok(None),
        Err(error) => Err(PullError::Door(error)),
    }
}

/// Whether this user owns the state directory. The agent could not use files of another user.
fn may_write(dir: &Path, owner: Option<Uid>, me: Uid, is_sudo: bool) -> Result<(), PullError> {
    match owner {
        Some(owner) if owner != me => {
            let name = User::from_uid(owner).ok().flatten().map(|user| user.name);
            let owner = name.unwrap_or_else(|| format!("with ID {owner}"));
            Err(PullError::Foreign { dir: dir.to_owned(), owner })
        }
        None if me.is_root() && is_sudo => Err(PullError::Root(dir.to_owned())),
        _ => Ok(()),
    }
}

/// Pulls an image without an agent. It locks the state directory only while it writes, so an agent that starts meanwhile need not wait.
async fn pull_alone(
    args: &AgentArgs,
    state: &StateDir,
    lock: Lock,
    question: &PullRequest,
    mut arrived: impl FnMut(u8),
) -> Result<String, PullError> {
    let PullRequest { image, credentials } = question;
    let images = open(args, state)?;
    images.begin_pull(image)?;
    drop(lock);
    images.offer_partials();
    let mut is_noted = false;
    let arrived = |percent| {
        // An agent has started meanwhile and owns the record: the image counts as not pulled by the agent.
        if !std::mem::replace(&mut is_noted, true)
            && let Ok(Some(_lock)) = state.lock()
            && images.reload().is_ok()
        {
            images.mark_fetching(image);
        }
        arrived(percent);
    };
    let pulled = images.fetch(image, credentials, arrived).await;
    // Before the lock: tart may be slow to answer.
    let found = images.brought(image).await;
    if let Some(_lock) = state.lock()? {
        images.reload()?;
        if let Ok(found) = &found {
            images.record_result(image, found.as_ref(), PullStarter::ThisProcess);
            if let (Some(digest), Ok(_)) = (found, &pulled) {
                images.grant(digest, None);
            }
        }
        pulled?;
        return Ok(found?.ok_or_else(|| ImageError::Vanished(image.clone()))?.to_string());
    }
    pulled?;
    // The agent finishes the pull: it finds the image in the cache.
    for _ in 0..START_TRIES {
        if let Some(digest) = ask(state, question, |_| ()).await? {
            return Ok(digest);
        }
        sleep(START_INTERVAL).await;
    }
    Err(PullError::Silent(state.path().to_owned()))
}

/// The record of images as it is now.
fn open(args: &AgentArgs, state: &StateDir) -> Result<ImageStore, FileError> {
    let metrics = Metrics::new();
    let tart = Tart::new(&args.tart_binary);
    let home_was_used = TartHomeOwner::has_owner(&tart)?;
    ImageStore::open(tart, state.clone(), 1, metrics, home_was_used)
}

/// The user's credentials: from a Docker config, or from tart's own variables.
fn credentials_of(args: &PullArgs) -> Result<Vec<Login>, CommandError> {
    let mut all = Vec::new();
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let login = variable("TART_REGISTRY_USERNAME").zip(variable("TART_REGISTRY_PASSWORD"));
    if let Some((username, password)) = login {
        let host = variable("TART_REGISTRY_HOSTNAME").ok_or(CommandError::NoHost)?;
        all.push(Login { path: RegistryPath::read(&host), username, password });
    }
    if let Some(path) = &args.docker_config {
        all.extend(read_config(path)?);
    }
    Ok(all)
}

fn read_config(path: &Path) -> Result<Vec<Login>, CommandError> {
    let content = fs::read(path).map_err(|error| CommandError::ConfigFile(path.to_owned(), error))?;
    credentials::read_docker_config(&content).map_err(|error| CommandError::Config(path.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_users_state_directory_is_not_written() {
        let (root, user, other) = (Uid::from_raw(0), Uid::from_raw(501), Uid::from_raw(u32::MAX - 7));
        for (owner, me, is_sudo, expected) in [
            (Some(user), user, false, None),
            (Some(root), root, true, None),
            (None, user, false, None),
            (None, root, false, None),
            (None, root, true, Some("without sudo")),
            (Some(other), root, true, Some("the agent runs as, with ID 4294967288")),
            (Some(other), user, false, Some("/state is not yours")),
            (Some(root), user, false, Some("the agent runs as, root")),
        ] {
            let refusal =
                may_write(Path::new("/state"), owner, me, is_sudo).err().map(|error| error.to_string());
            assert_eq!(refusal.is_some(), expected.is_some(), "{owner:?} {me} {is_sudo}");
            assert!(refusal.unwrap_or_default().contains(expected.unwrap_or_default()), "{owner:?} {me}");
        }
    }
}
