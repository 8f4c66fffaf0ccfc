//! The Mac that runs this program.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use command::CommandError;
use nix::unistd::User;
use tokio::process::Command;

use crate::host::{Access, Call, CallOutput, Host, HostError, Owner};

/// How long a file may take to be read or written: a disk can hang.
const FILE_DEADLINE: Duration = Duration::from_secs(30);
/// No file that this crate reads is larger.
const MAX_FILE: u64 = 4 << 20;

/// The Mac that runs this program. The program must be root to change anything.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalHost;

impl Host for LocalHost {
    async fn run(&self, call: Call<'_>) -> Result<CallOutput, HostError> {
        let program = call.program().to_owned();
        let mut command = Command::new(&program);
        command.args(call.argv.iter().skip(1));
        match command::run_with_input(command, call.stdin, call.deadline).await {
            Ok(output) => {
                Ok(CallOutput { code: code(output.status), stdout: output.stdout, stderr: output.stderr })
            }
            Err(CommandError::DeadlineExceeded { deadline, .. }) => {
                Err(HostError::DeadlineExceeded { program, deadline })
            }
            Err(CommandError::Run { source, .. }) => Err(HostError::Run { program, source: source.into() }),
            Err(error @ CommandError::Failed { .. }) => Err(HostError::Run { program, source: error.into() }),
        }
    }

    async fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        let file = PathBuf::from(path);
        let result = blocking(move || read(&file)).await;
        result.map_err(|source| HostError::Read { path: path.to_owned(), source: source.into() })
    }

    async fn write_file(&self, path: &str, contents: &[u8], access: &Access) -> Result<(), HostError> {
        let (file, contents, access) = (PathBuf::from(path), contents.to_owned(), access.clone());
        let result = blocking(move || write(&file, &contents, &access)).await;
        result.map_err(|source| HostError::Write { path: path.to_owned(), source: source.into() })
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Does file work on a thread that may block, for as long as [`FILE_DEADLINE`].
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    match tokio::time::timeout(FILE_DEADLINE, tokio::task::spawn_blocking(work)).await {
        Ok(joined) => joined.map_err(io::Error::other)?,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut contents = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut contents)?;
    if read as u64 > MAX_FILE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(Some(contents)) }
}

fn write(path: &Path, contents: &[u8], access: &Access) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (uid, gid) = ids(&access.owner)?;
    let temporary = dir.join(format!(".{}.new", name.to_string_lossy()));
    // A program that died while it wrote has left one.
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).and_then(|mut file| {
            file.write_all(contents)?;
            fchown(&file, Some(uid), Some(gid))?;
            file.set_permissions(Permissions::from_mode(access.mode))?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)?;
            File::open(dir)?.sync_all()
        });
    if written.is_err() {
        // After the rename there is none.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn ids(owner: &Owner) -> io::Result<(u32, u32)> {
    match owner {
        Owner::Root => Ok((0, 0)),
        Owner::User(name) => match User::from_name(name)? {
            Some(user) => Ok((user.uid.as_raw(), user.gid.as_raw())),
            None => Err(io::Error::new(io::ErrorKind::NotFound, format!("this Mac has no user `{name}`"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const LONG: Duration = Duration::from_mins(1);

    fn me() -> Owner {
        Owner::User(User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name)
    }

    #[tokio::test]
    async fn a_command_gets_its_input_and_its_exit_code_is_an_answer() {
        let call = Call::new(&["/bin/sh", "-c", "cat; echo no >&2; exit 3"], LONG);
        let output = LocalHost.run(call.with_stdin(b"hello")).await.unwrap();
        assert_eq!((output.code, output.stdout.as_str(), output.message().as_str()), (3, "hello", "no"));
        let killed = LocalHost.run(Call::new(&["/bin/sh", "-c", "kill -9 $$"], LONG)).await.unwrap();
        assert_eq!(killed.code, 137);
    }

    #[tokio::test]
    async fn a_program_that_is_missing_or_late_is_an_error_that_names_it() {
        let missing = LocalHost.run(Call::new(&["/nowhere/x"], LONG)).await.unwrap_err();
        assert_eq!(missing.to_string(), "cannot run /nowhere/x");
        let late =
            LocalHost.run(Call::new(&["/bin/sleep", "1000"], Duration::from_millis(20))).await.unwrap_err();
        assert!(matches!(late, HostError::DeadlineExceeded { .. }), "{late}");
    }

    #[tokio::test]
    async fn a_file_is_replaced_as_a_whole_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let text = path.to_str().unwrap();
        assert_eq!(LocalHost.read_file(text).await.unwrap(), None);
        std::fs::write(&path, "old").unwrap();
        std::fs::write(dir.path().join(".file.new"), "left behind").unwrap();
        let before = path.metadata().unwrap().ino();
        LocalHost.write_file(text, b"new", &Access { owner: me(), mode: 0o640 }).await.unwrap();
        assert_eq!(LocalHost.read_file(text).await.unwrap().unwrap(), b"new");
        let after = path.metadata().unwrap();
        assert_eq!(after.mode() & 0o777, 0o640);
        assert_ne!(after.ino(), before);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        std::fs::create_dir_all(path.join("by a directory")).unwrap();
        let access = Access { owner: me(), mode: 0o600 };
        let error = LocalHost.write_file(path.to_str().unwrap(), b"x", &access).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot write "), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let nobody = Access::user("no such user", 0o600);
        assert!(LocalHost.write_file(path.to_str().unwrap(), b"x", &nobody).await.is_err());
    }
}
