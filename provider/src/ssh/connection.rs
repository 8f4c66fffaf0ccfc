//! One connection to a Mac: connect, authenticate by key, run commands. Everything has a deadline.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::client::{self, AuthResult, Handle};
use russh::keys::known_hosts::{known_host_keys_path, learn_known_hosts_path};
use russh::keys::{PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate};
use russh::{ChannelMsg, ChannelReadHalf, Disconnect, Preferred, Sig};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::upload::Noted;
use super::{Fingerprint, OnUpload, SshAddress, SshError, SshKey, known_hosts};

const CONNECT_DEADLINE: Duration = Duration::from_secs(15);
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(20);
const OPEN_DEADLINE: Duration = Duration::from_secs(15);
/// A Mac that is silent for this long is asked whether it is there, and is lost when it misses three questions.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Output beyond this is read and dropped.
const MAX_OUTPUT: usize = 4 << 20;

/// Held by the one that adds a key to a file of known hosts: several Macs may be new at once.
static LEARNING: Mutex<()> = Mutex::new(());

/// What is known about a Mac's host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostKeyPolicy {
    /// It has this one.
    Pinned(Fingerprint),
    /// It has one of those that this file has for it, as `ssh` keeps them.
    KnownHosts(PathBuf),
    /// The same, and the key of one that the file does not have is trusted and added.
    Learned(PathBuf),
    /// Nothing yet: the first one is trusted. The caller keeps it for the next time.
    TrustOnFirstUse,
}

/// A connection to a Mac. Commands run on channels of their own, side by side.
pub(crate) struct Connection {
    handle: Handle<HostKeyCheck>,
    address: SshAddress,
    fingerprint: Fingerprint,
    is_learned: bool,
    on_upload: Option<OnUpload>,
}

/// How a command ended, and what it printed.
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("address", &self.address).finish_non_exhaustive()
    }
}

struct HostKeyCheck {
    /// The keys that are trusted; `None` for any.
    trusted: Option<Vec<Fingerprint>>,
    seen: Arc<Mutex<Option<PublicKey>>>,
}

impl client::Handler for HostKeyCheck {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let key = key.public_key();
        let is_trusted = self.trusted.as_ref().is_none_or(|trusted| trusted.contains(&Fingerprint::of(&key)));
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
        Ok(is_trusted)
    }
}

impl HostKeyPolicy {
    /// The keys that are trusted; `None` for any.
    fn trusted(&self, known: &[PublicKey]) -> Option<Vec<Fingerprint>> {
        match self {
            Self::Pinned(fingerprint) => Some(vec![fingerprint.clone()]),
            Self::TrustOnFirstUse => None,
            Self::KnownHosts(_) => Some(known.iter().map(Fingerprint::of).collect()),
            Self::Learned(_) => (!known.is_empty()).then(|| known.iter().map(Fingerprint::of).collect()),
        }
    }

    /// The keys that the file has for a Mac.
    fn known(&self, address: &SshAddress) -> Result<Vec<PublicKey>, SshError> {
        let Some(path) = self.file() else { return Ok(Vec::new()) };
        let known = known(address, path)?;
        match self {
            Self::KnownHosts(_) if known.is_empty() => {
                Err(SshError::UnknownHost { address: address.clone(), path: path.clone() })
            }
            _ => Ok(known),
        }
    }

    /// The file with the keys that are known.
    fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::KnownHosts(path) | Self::Learned(path) => Some(path),
            Self::Pinned(_) | Self::TrustOnFirstUse => None,
        }
    }

    /// Adds a key that was trusted at first use to its file, if there is one. Returns whether there is.
    fn learn(&self, address: &SshAddress, key: &PublicKey) -> Result<bool, SshError> {
        let Self::Learned(path) = self else { return Ok(false) };
        let failed = |source| SshError::Learn {
            address: address.clone(),
            path: path.clone(),
            source: Box::new(source),
        };
        let lines = std::fs::read_to_string(path).unwrap_or_default();
        if let Some(line) = known_hosts::undecided_line(&lines, &address.host) {
            let why = format!("its line {line:?} may be about this Mac; give --host-key");
            return Err(failed(io::Error::other(why).into()));
        }
        if let Some(directory) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| failed(error.into()))?;
        }
        let _alone = LEARNING.lock().unwrap_or_else(PoisonError::into_inner);
        learn_known_hosts_path(&address.host, address.port, key, path).map_err(failed)?;
        Ok(true)
    }
}

/// The keys that a file has for a Mac.
fn known(address: &SshAddress, path: &Path) -> Result<Vec<PublicKey>, SshError> {
    let failed =
        |source: russh::keys::Error| SshError::KnownHosts { path: path.to_owned(), source: Box::new(source) };
    // A file that cannot be read is no file without this Mac.
    match File::open(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error.into())),
        _ => (),
    }
    let known = known_host_keys_path(&address.host, address.port, path).map_err(failed)?;
    Ok(known.into_iter().map(|(_, key)| key).collect())
}

impl Connection {
    /// Connects to a Mac and authenticates.
    pub(crate) async fn open(
        address: &SshAddress,
        key: &SshKey,
        policy: &HostKeyPolicy,
    ) -> Result<Self, SshError> {
        let late = |what, deadline| SshError::DeadlineExceeded { address: address.clone(), what, deadline };
        let known = policy.known(address)?;
        let trusted = policy.trusted(&known);
        let connected =
            timeout(CONNECT_DEADLINE, TcpStream::connect((address.host.as_str(), address.port))).await;
        let stream = connected
            .map_err(|_| late("accept a connection", CONNECT_DEADLINE))?
            .map_err(|source| SshError::Connect { address: address.clone(), source })?;
        let seen = Arc::new(Mutex::new(None));
        let config = client::Config {
            keepalive_interval: Some(KEEPALIVE),
            keepalive_max: 3,
            nodelay: true,
            preferred: Preferred {
                key: known_hosts::preferred_algorithms(&known).into(),
                ..Preferred::DEFAULT
            },
            ..client::Config::default()
        };
        let check = HostKeyCheck { trusted: trusted.clone(), seen: Arc::clone(&seen) };
        let shaken =
            timeout(HANDSHAKE_DEADLINE, client::connect_stream(Arc::new(config), stream, check)).await;
        let shaken = shaken.map_err(|_| late("finish the handshake", HANDSHAKE_DEADLINE))?;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut handle, key_seen) = match (shaken, seen, &trusted) {
            (Ok(handle), Some(seen), _) => (handle, seen),
            (Err(russh::Error::UnknownKey), Some(seen), Some(trusted)) => {
                let mut expected = trusted.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
                if let Some(file) = policy.file() {
                    let _ = write!(expected, " of {}", file.display());
                }
                let seen = Fingerprint::of(&seen);
                return Err(SshError::HostKey { address: address.clone(), expected, seen });
            }
            (Err(source), ..) => return Err(broken(address, source)),
            (Ok(_), None, _) => return Err(broken(address, russh::Error::UnknownKey)),
        };
        let fingerprint = Fingerprint::of(&key_seen);
        let offered = PrivateKeyWithHashAlg::new(key.private(), None);
        let accepted =
            timeout(HANDSHAKE_DEADLINE, handle.authenticate_publickey(&address.user, offered)).await;
        match accepted {
            Ok(Ok(AuthResult::Success)) => {
                // The caller tells of it, which it cannot of a Mac that refuses the key.
                let is_learned = trusted.is_none() && policy.learn(address, &key_seen)?;
                Ok(Self { handle, address: address.clone(), fingerprint, is_learned, on_upload: None })
            }
            Ok(Ok(AuthResult::Failure { .. })) => {
                Err(SshError::KeyRefused { address: address.clone(), key: key.authorized_key() })
            }
            Ok(Err(source)) => Err(broken(address, source)),
            Err(_) => Err(late("answer to the key", HANDSHAKE_DEADLINE)),
        }
    }

    /// Has the caller told of every piece of a file that goes to the Mac.
    pub(crate) fn on_upload(&mut self, on_upload: OnUpload) {
        self.on_upload = Some(on_upload);
    }

    /// Who is told of uploads.
    pub(super) fn upload_listener(&self) -> Option<&OnUpload> {
        self.on_upload.as_ref()
    }

    /// The Mac.
    pub(crate) fn address(&self) -> &SshAddress {
        &self.address
    }

    /// The Mac's host key.
    pub(crate) fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Whether the Mac's host key was new, and was added to the known hosts.
    pub(crate) fn is_learned(&self) -> bool {
        self.is_learned
    }

    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Says good-bye.
    pub(crate) async fn close(self) {
        let bye = self.handle.disconnect(Disconnect::ByApplication, "", "");
        // The Mac notices a connection that just ends, too.
        let _ = timeout(OPEN_DEADLINE, bye).await;
    }

    /// Runs a command line to its end, with `input` as its standard input. The input is read in pieces, no faster than the Mac takes it.
    pub(super) async fn exec(
        &self,
        line: &str,
        input: impl AsyncRead + Unpin,
        deadline: Duration,
    ) -> Result<Ended, SshError> {
        let opening = async {
            let channel = self.handle.channel_open_session().await?;
            channel.exec(true, line).await?;
            Ok(channel)
        };
        let opened = timeout(OPEN_DEADLINE, opening).await;
        let late =
            |what, deadline| SshError::DeadlineExceeded { address: self.address.clone(), what, deadline };
        let channel = match opened {
            Ok(channel) => channel.map_err(|source| broken(&self.address, source))?,
            Err(_) => return Err(late("open a channel", OPEN_DEADLINE)),
        };
        let (mut read, write) = channel.split();
        let mut writer = write.make_writer();
        let mut input = Noted::new(input);
        let run = async {
            let feed = async {
                // A command may end without reading all of it. Its exit code says whether it missed the rest.
                let fed = tokio::io::copy(&mut input, &mut writer).await;
                let _ = writer.shutdown().await;
                fed
            };
            let collect = collect(&mut read);
            tokio::pin!(feed, collect);
            tokio::select! {
                ended = &mut collect => ended,
                _ = &mut feed => collect.await,
            }
        };
        let run = timeout(deadline, run).await;
        // The Mac has noticed only that the input ended early.
        if let Some(source) = input.failure() {
            return Err(SshError::Input { address: self.address.clone(), source });
        }
        match run {
            Ok(Some(ended)) => Ok(ended),
            Ok(None) => Err(SshError::Cut { address: self.address.clone() }),
            Err(_) => {
                let stop = async {
                    let _ = write.signal(Sig::KILL).await;
                    let _ = write.close().await;
                };
                let _ = timeout(OPEN_DEADLINE, stop).await;
                Err(late("end a command", deadline))
            }
        }
    }
}

fn broken(address: &SshAddress, source: russh::Error) -> SshError {
    SshError::Protocol { address: address.clone(), source: Box::new(source) }
}

/// Reads until the command has ended; `None` when the channel ends without its exit code.
async fn collect(channel: &mut ChannelReadHalf) -> Option<Ended> {
    let (mut code, mut stdout, mut stderr) = (None, Vec::new(), Vec::new());
    let keep = |into: &mut Vec<u8>, data: &[u8]| {
        let left = MAX_OUTPUT.saturating_sub(into.len());
        into.extend_from_slice(&data[..data.len().min(left)]);
    };
    while let Some(message) = channel.wait().await {
        match message {
            ChannelMsg::Data { data } => keep(&mut stdout, &data),
            ChannelMsg::ExtendedData { data, .. } => keep(&mut stderr, &data),
            ChannelMsg::ExitStatus { exit_status } => code = i32::try_from(exit_status).ok(),
            ChannelMsg::ExitSignal { signal_name, .. } => code = Some(signal_code(&signal_name)),
            ChannelMsg::Failure => return None,
            _ => (),
        }
    }
    code.map(|code| Ended { code, stdout, stderr })
}

/// The exit code by which shells tell of a signal.
fn signal_code(signal: &Sig) -> i32 {
    128 + match signal {
        Sig::HUP => 1,
        Sig::INT => 2,
        Sig::ABRT => 6,
        Sig::KILL => 9,
        Sig::SEGV => 11,
        Sig::PIPE => 13,
        Sig::TERM => 15,
        _ => 0,
    }
}
