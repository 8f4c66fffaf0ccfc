//! Whatever can happen to launchd, as events.

use std::fs::{self, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use mac_sim::settings::SIMULATOR;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::{Event, start_thread};

/// Starts the threads that wait. To be called before any other thread exists: they all must leave SIGCHLD to one of them.
pub(super) fn listen(ssh: TcpListener, events: &Sender<Event>) -> io::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.thread_block()?;
    let sender = events.clone();
    start_thread(move || while signals.wait().is_ok() && sender.send(Event::Child).is_ok() {});

    let sender = events.clone();
    start_thread(move || {
        // Nothing is ever written to it.
        let _ = io::stdin().read(&mut [0]);
        let _ = sender.send(Event::PowerCut);
    });

    let sender = events.clone();
    start_thread(move || {
        for stream in ssh.incoming().map_while(Result::ok) {
            if sender.send(Event::Connection(stream)).is_err() {
                break;
            }
        }
    });

    let path = Path::new(SIMULATOR).join("launchd.sock");
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    let sender = events.clone();
    start_thread(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            start_thread(move || {
                // A client that has gone needs no answer.
                let _ = converse(stream, &sender);
            });
        }
    });
    Ok(())
}

/// Reads one request, and writes its answer when launchd has one.
fn converse(mut stream: UnixStream, events: &Sender<Event>) -> io::Result<()> {
    let caller = getsockopt(&stream, PeerCredentials)?.uid();
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let (answer, answered) = channel();
    let request = serde_json::from_str(&line)?;
    events.send(Event::Request(request, caller, answer)).map_err(io::Error::other)?;
    let answer = answered.recv().map_err(io::Error::other)?;
    let mut bytes = serde_json::to_vec(&answer)?;
    bytes.push(b'\n');
    stream.write_all(&bytes)
}
