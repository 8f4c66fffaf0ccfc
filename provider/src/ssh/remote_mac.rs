//! A Mac behind SSH as a [`Host`]. Root's commands go through sudo.

use std::path::Path;
use std::time::Duration;

use launchd::{Access, Call, CallOutput, Host, HostError, Owner};

use super::connection::Ended;
use super::quote::command_line;
use super::upload::Counted;
use super::{Connection, SshError};
use crate::artifact::Artifact;
use crate::host::Remote;

/// How long a small file may take.
const FILE_DEADLINE: Duration = Duration::from_mins(1);
/// The exit code by which the script below says that there is no such file.
const NO_FILE: i32 = 44;
/// The exit code by which the script below says that its input ended early.
const CUT_SHORT: i32 = 45;

/// Prints a file.
const READ: &str = "[ -e \"$1\" ] || exit 44; exec cat \"$1\"";

/// Writes its input to `$1`, which gets owner `$2` and mode `$3`, if the input has `$4` bytes. A connection that was cut looks like the end of
/// the input.
const WRITE: &str = "set -eu
umask 077
new=$(dirname \"$1\")/.$(basename \"$1\").new
trap 'rm -f \"$new\"' EXIT
rm -f \"$new\"
cat >\"$new\"
[ \"$(wc -c <\"$new\" | tr -d ' ')\" = \"$4\" ] || exit 45
chown \"$2\" \"$new\"
chmod \"$3\" \"$new\"
mv -f \"$new\" \"$1\"";

impl Connection {
    async fn call(&self, prefix: &[&str], call: Call<'_>) -> Result<CallOutput, HostError> {
        let program = || call.program().to_owned();
        let line = command_line(prefix.iter().copied().chain(call.argv.iter().copied()));
        let ended = match self.exec(&line, call.stdin, call.deadline).await {
            Ok(ended) => ended,
            Err(SshError::DeadlineExceeded { what: "end a command", deadline, .. }) => {
                return Err(HostError::DeadlineExceeded { program: program(), deadline });
            }
            Err(error) => return Err(HostError::Run { program: program(), source: error.into() }),
        };
        let output = output(&ended);
        if !prefix.is_empty() && is_sudo_refusal(&output) {
            let refusal = SshError::SudoPassword { address: self.address().clone() };
            return Err(HostError::Run { program: program(), source: refusal.into() });
        }
        Ok(output)
    }
}

const SUDO: [&str; 3] = ["/usr/bin/sudo", "-n", "--"];

fn output(ended: &Ended) -> CallOutput {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CallOutput { code: ended.code, stdout: text(&ended.stdout), stderr: text(&ended.stderr) }
}

fn is_sudo_refusal(output: &CallOutput) -> bool {
    output.code == 1
        && output.stderr.lines().any(|line| line.starts_with("sudo: ") && line.contains("password"))
}

impl Host for Connection {
    async fn run(&self, call: Call<'_>) -> Result<CallOutput, HostError> {
        self.call(&SUDO, call).await
    }

    async fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        let failed = |source: SshError| HostError::Read { path: path.to_owned(), source: source.into() };
        let argv = SUDO.into_iter().chain(["/bin/sh", "-c", READ, "sh", path]);
        let ended =
            self.exec(&command_line(argv), tokio::io::empty(), FILE_DEADLINE).await.map_err(failed)?;
        match ended.code {
            0 => Ok(Some(ended.stdout)),
            NO_FILE => Ok(None),
            _ if is_sudo_refusal(&output(&ended)) => {
                Err(failed(SshError::SudoPassword { address: self.address().clone() }))
            }
            _ => Err(failed(SshError::Failed { message: output(&ended).message() })),
        }
    }

    async fn write_file(&self, path: &str, contents: &[u8], access: &Access) -> Result<(), HostError> {
        let failed = |source: SshError| HostError::Write { path: path.to_owned(), source: source.into() };
        let owner = match &access.owner {
            Owner::Root => "root:wheel".to_owned(),
            Owner::User(name) => format!("{name}:staff"),
        };
        let (mode, size) = (format!("{:o}", access.mode), contents.len().to_string());
        let argv = SUDO.into_iter().chain(["/bin/sh", "-c", WRITE, "sh", path, &owner, &mode, &size]);
        let ended = self.exec(&command_line(argv), contents, FILE_DEADLINE).await.map_err(failed)?;
        match ended.code {
            0 => Ok(()),
            CUT_SHORT => Err(failed(SshError::Cut { address: self.address().clone() })),
            _ if is_sudo_refusal(&output(&ended)) => {
                Err(failed(SshError::SudoPassword { address: self.address().clone() }))
            }
            _ => Err(failed(SshError::Failed { message: output(&ended).message() })),
        }
    }
}

impl Remote for Connection {
    async fn run_as_user(&self, call: Call<'_>) -> Result<CallOutput, HostError> {
        self.call(&[], call).await
    }

    fn is_lost(&self) -> bool {
        self.is_closed()
    }

    async fn upload(&self, artifact: &Artifact, path: &str, deadline: Duration) -> Result<(), HostError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| HostError::Write {
            path: path.to_owned(),
            source,
        };
        let file = open(artifact.path()).await.map_err(|error| failed(error.into()))?;
        let name = artifact.path().file_name().unwrap_or_default().to_string_lossy();
        let file = Counted::new(file, &name, artifact.size(), self.upload_listener());
        let size = artifact.size().to_string();
        let argv = SUDO.into_iter().chain(["/bin/sh", "-c", WRITE, "sh", path, "root:wheel", "755", &size]);
        let ended =
            self.exec(&command_line(argv), file, deadline).await.map_err(|error| failed(error.into()))?;
        match ended.code {
            0 => Ok(()),
            CUT_SHORT => Err(failed(SshError::Shortened { address: self.address().clone() }.into())),
            _ => Err(failed(SshError::Failed { message: output(&ended).message() }.into())),
        }
    }
}

async fn open(path: &Path) -> std::io::Result<tokio::fs::File> {
    let mut file = tokio::fs::File::open(path).await?;
    // Half of what one packet may hold: what a roll has in memory at a time.
    file.set_max_buf_size(16 << 10);
    Ok(file)
}
