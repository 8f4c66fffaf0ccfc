//! How fast a gigabyte passes through the kubelet API, in times that a plain TCP connection takes for as many bytes.

use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::kubelet::KubeletClient;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::time::timeout;

use super::figure::median;
use super::pods::Streamed;
use super::spdy;

const BYTES: u64 = 1_000_000_000;
const PIECE: usize = 64 << 10;
const ROUNDS: usize = 3;
/// One transfer, on a machine that others use, too.
const DEADLINE: Duration = Duration::from_mins(5);
/// The bytes of a container's line, with its end.
const LINE: usize = 100;

/// Gives a container a log of a gigabyte, in the file before the current one.
pub(crate) fn write_log(logs: &Path) -> Result<()> {
    let line = format!("2026-11-16T08:00:00.000000000Z stdout F {}\n", "x".repeat(LINE - 1));
    let mut file = BufWriter::new(File::create(logs.join("0.log.1"))?);
    for _ in 0..BYTES / LINE as u64 {
        file.write_all(line.as_bytes())?;
    }
    Ok(file.flush()?)
}

/// The time that a client takes to read the log, in times of a plain copy of as many bytes.
pub(crate) async fn log_ratio(kubelet: &KubeletClient, pod: &Streamed) -> Result<f64> {
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let read = async {
            let mut log = kubelet.get(&format!("/containerLogs/{}", pod.container())).await?;
            let (mut piece, mut length) = (vec![0; PIECE], 0_u64);
            loop {
                match log.read(&mut piece).await? {
                    0 => return anyhow::Ok(length),
                    count => length += count as u64,
                }
            }
        };
        // With what HTTP adds to it.
        let length = timeout(DEADLINE, read).await.context("the log does not end")??;
        ensure!(length >= BYTES, "only {length} bytes of the log came");
        let seconds = begun.elapsed().as_secs_f64();
        ratios.push(seconds / plain_copy().await?);
    }
    Ok(median(ratios))
}

/// The time that a client takes to read from a port of the guest, in times of a plain copy of as many bytes.
pub(crate) async fn port_forward_ratio(kubelet: &KubeletClient, pod: &Streamed) -> Result<f64> {
    let port = serve(&pod.address)?;
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let read = async {
            let stream = kubelet.spdy(&format!("/portForward/{}", pod.pod()), spdy::PROTOCOL).await?;
            let mut forwarded = spdy::Forwarded::open(stream, port).await?;
            let mut length = 0_u64;
            while let Some(data) = forwarded.next().await? {
                length += data.len() as u64;
            }
            anyhow::Ok(length)
        };
        let length = timeout(DEADLINE, read).await.context("the connection does not end")??;
        ensure!(length == BYTES, "{length} bytes came");
        let seconds = begun.elapsed().as_secs_f64();
        ratios.push(seconds / plain_copy().await?);
    }
    Ok(median(ratios))
}

/// How many of two gigabytes do not arrive as they were sent: one through kubectl's `WebSockets`, one through its SPDY.
pub(crate) async fn spoilt_by_kubectl(control_plane: &ControlPlane, pod: &Streamed) -> Result<f64> {
    let port = serve(&pod.address)?;
    let mut expected = Sha256::new();
    each_piece(|piece| {
        expected.update(piece);
        Ok(())
    })?;
    let expected = expected.finalize();
    let mut spoilt = 0.0;
    for web_sockets in ["true", "false"] {
        let kubectl = control_plane.kubectl().namespace(&pod.namespace);
        let mut command = kubectl.command();
        command.args(["port-forward", &pod.name, &format!(":{port}")]);
        command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", web_sockets).stdout(Stdio::piped());
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        let line =
            timeout(DEADLINE, lines.next_line()).await.context("no port")??.context("kubectl has ended")?;
        let local = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next());
        let local: u16 = local.with_context(|| line.clone())?.parse()?;
        let read = tokio::task::spawn_blocking(move || hash(TcpStream::connect(("127.0.0.1", local))?));
        let (length, found) = timeout(DEADLINE, read).await.context("the connection does not end")???;
        if length != BYTES || found != expected[..] {
            spoilt += 1.0;
        }
    }
    Ok(spoilt)
}

/// Seconds for as many bytes from one thread to another, over TCP and nothing else.
async fn plain_copy() -> Result<f64> {
    let port = serve("127.0.0.1")?;
    let copy = tokio::task::spawn_blocking(move || {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        let (mut piece, mut length) = (vec![0; PIECE], 0_u64);
        loop {
            match stream.read(&mut piece)? {
                0 => break,
                count => length += count as u64,
            }
        }
        ensure!(length == BYTES, "{length} bytes came");
        Ok(begun.elapsed().as_secs_f64())
    });
    copy.await?
}

/// A server that sends a gigabyte to each client; its port.
fn serve(address: &str) -> Result<u16> {
    let listener = TcpListener::bind((address, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A client that is gone needs no more.
            let _ = each_piece(|piece| Ok(stream.write_all(piece)?));
            let _ = stream.shutdown(Shutdown::Write);
        }
    });
    Ok(port)
}

/// Hands out a gigabyte in which every piece is another one.
fn each_piece(mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(18);
    let mut noise = vec![0; PIECE * 16];
    random.fill(&mut noise);
    let mut left = BYTES;
    let mut number = 0_u64;
    while left > 0 {
        let start = usize::try_from(number * 4099)? % (noise.len() - PIECE);
        let length = PIECE.min(usize::try_from(left)?);
        take(&noise[start..start + length])?;
        (left, number) = (left - length as u64, number + 1);
    }
    Ok(())
}

/// The length and the hash of all that arrives.
fn hash(mut stream: TcpStream) -> Result<(u64, Vec<u8>)> {
    let (mut piece, mut hash, mut length) = (vec![0; PIECE], Sha256::new(), 0_u64);
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok((length, hash.finalize().to_vec())),
            count => {
                hash.update(&piece[..count]);
                length += count as u64;
            }
        }
    }
}

/// Removes the log again.
pub(crate) fn remove_log(logs: &Path) -> Result<()> {
    Ok(fs::remove_file(logs.join("0.log.1"))?)
}
