//! kubectl with binary streams, over either transport.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::time::timeout;

use crate::scene::{DEADLINE, Scene};

/// What kubectl speaks to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    WebSockets,
    Spdy,
}

pub(super) const TRANSPORTS: [Transport; 2] = [Transport::WebSockets, Transport::Spdy];

/// The end of a kubectl.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) code: Option<i32>,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

impl Done {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Transport {
    /// Starts kubectl with pipes.
    pub(super) fn start<A: AsRef<str>>(self, scene: &Scene, arguments: &[A]) -> Result<Child> {
        spawn(self.command(scene, arguments))
    }

    /// Starts kubectl in a terminal of this size; the pipes are the terminal's.
    pub(super) fn start_on_terminal<A: AsRef<str>>(
        self,
        scene: &Scene,
        (rows, columns): (u16, u16),
        arguments: &[A],
    ) -> Result<Child> {
        let kubectl = self.command(scene, arguments);
        let words = std::iter::once(kubectl.get_program()).chain(kubectl.get_args());
        let quoted = words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")));
        let line = quoted.collect::<Vec<_>>().join(" ");
        let mut command = scene.control_plane.sandbox().command("/usr/bin/script");
        for (name, value) in kubectl.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["-qec", &format!("stty rows {rows} cols {columns}; exec {line}"), "/dev/null"]);
        spawn(command)
    }

    fn command<A: AsRef<str>>(self, scene: &Scene, arguments: &[A]) -> Command {
        let mut command = scene.kubectl.command();
        let web_sockets = (self == Self::WebSockets).to_string();
        for name in ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"] {
            command.env(name, &web_sockets);
        }
        command.args(arguments.iter().map(AsRef::as_ref));
        command
    }

    /// Runs kubectl with this standard input to its end.
    pub(super) async fn run<A: AsRef<str>>(
        self,
        scene: &Scene,
        arguments: &[A],
        input: Vec<u8>,
    ) -> Result<Done> {
        let mut child = self.start(scene, arguments)?;
        let (mut stdin, mut stdout, mut stderr) = pipes(&mut child)?;
        let (mut out, mut err) = (Vec::new(), String::new());
        let run = async {
            let ((), read, told) = tokio::join!(
                async {
                    // kubectl may end before it has read all.
                    let _ = stdin.write_all(&input).await;
                    drop(stdin);
                },
                stdout.read_to_end(&mut out),
                stderr.read_to_string(&mut err)
            );
            read.and(told)?;
            child.wait().await
        };
        let status = timeout(DEADLINE, run).await.context("kubectl does not end")??;
        Ok(Done { code: status.code(), stdout: out, stderr: err })
    }
}

fn spawn(mut command: Command) -> Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(tokio::process::Command::from(command).kill_on_drop(true).spawn()?)
}

type Pipes = (tokio::process::ChildStdin, tokio::process::ChildStdout, tokio::process::ChildStderr);

pub(super) fn pipes(child: &mut Child) -> Result<Pipes> {
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { anyhow::bail!("no pipes") };
    Ok((stdin, stdout, stderr))
}
