//! Code signatures: kept with a file's inode, as the kernel's cache of them is.
//!
//! A real signature is in the program's bytes. Here it is an extended attribute, which stays with the inode when its content is
//! overwritten and does not go to a copy. The kernel remembers the code of each inode that it has started; other code in the same inode
//! gets the process killed until the Mac reboots.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use mac_sim::settings::LINUX;
use serde::{Deserialize, Serialize};

use super::programs::host_facts;

const SIGNATURE: &str = "user.mac-sim.signature";
const EXECUTED: &str = "user.mac-sim.executed";

/// The first bytes of a compiled program.
const COMPILED: &[u8] = b"\x7fELF";

/// A file's content, and by what it is recognised without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Code {
    size: u64,
    modified: (i64, i64),
    /// SHA-256 in hexadecimal digits.
    pub(super) hash: String,
}

/// An ad-hoc signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signature {
    pub(super) code: Code,
    pub(super) identifier: String,
}

/// The code that the kernel has started from an inode.
#[derive(Debug, Serialize, Deserialize)]
struct Executed {
    code: Code,
    boot: String,
}

/// Whether the kernel lets a program run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Execution {
    /// It runs.
    Allowed,
    /// It is not signed, or was changed after it was signed.
    Unsigned,
    /// The inode had other code when it was last started.
    Changed,
}

impl Execution {
    pub(super) fn is_killed(self) -> bool {
        self != Self::Allowed
    }
}

/// What a verification finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Validity {
    Valid,
    NotSigned,
    Modified,
}

/// Whether the kernel would start this program. It remembers the code that it starts.
pub(super) fn execution(program: &Path) -> io::Result<Execution> {
    let program = program.canonicalize()?;
    // The Mac's own programs are signed, and scripts need not be.
    if program.starts_with("/System") || !is_compiled(&program)? {
        return Ok(Execution::Allowed);
    }
    let executed: Option<Executed> = read(&program, EXECUTED)?;
    let known =
        executed.filter(|executed| host_facts::boot_session().is_some_and(|boot| boot == executed.boot));
    let code = code(&program, known.as_ref().map(|executed| &executed.code))?;
    if known.is_some_and(|executed| executed.code.hash != code.hash) {
        return Ok(Execution::Changed);
    }
    if verify(&program)? != Validity::Valid {
        return Ok(Execution::Unsigned);
    }
    write(&program, EXECUTED, &Executed { code, boot: host_facts::boot_session().unwrap_or_default() })?;
    Ok(Execution::Allowed)
}

/// The signature of a file.
pub(super) fn signature(path: &Path) -> io::Result<Option<Signature>> {
    read(path, SIGNATURE)
}

/// Whether a file's signature fits its content.
pub(super) fn verify(path: &Path) -> io::Result<Validity> {
    let Some(signature) = signature(path)? else { return Ok(Validity::NotSigned) };
    let code = code(path, Some(&signature.code))?;
    Ok(if code.hash == signature.code.hash { Validity::Valid } else { Validity::Modified })
}

/// Signs a file in place; it must be a new one that has never run.
pub(super) fn sign(path: &Path, identifier: &str) -> io::Result<()> {
    let signature = Signature { code: code(path, None)?, identifier: identifier.to_owned() };
    write(path, SIGNATURE, &signature)
}

fn is_compiled(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut head)?;
    Ok(head == COMPILED)
}

fn stamp(metadata: &Metadata) -> (u64, (i64, i64)) {
    (metadata.len(), (metadata.mtime(), metadata.mtime_nsec()))
}

/// What is in a file. A large file is not read again if it looks as it did.
fn code(path: &Path, known: Option<&Code>) -> io::Result<Code> {
    let (size, modified) = stamp(&fs::metadata(path)?);
    if let Some(known) = known.filter(|known| (known.size, known.modified) == (size, modified)) {
        return Ok(known.clone());
    }
    Ok(Code { size, modified, hash: digest(path, "sha256sum")? })
}

/// The digest of a file by one of the machine's programs, which are far quicker than an unoptimised build of this one.
pub(super) fn digest(path: &Path, program: &str) -> io::Result<String> {
    let program = Path::new(LINUX).join("usr/bin").join(program);
    let output = Command::new(program).stdin(File::open(path)?).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let digest = text.split_whitespace().next().filter(|_| output.status.success());
    digest.map(str::to_owned).ok_or_else(|| io::Error::other("cannot compute a digest"))
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path, name: &str) -> io::Result<Option<T>> {
    let Some(bytes) = xattr::get(path, name)? else { return Ok(None) };
    Ok(serde_json::from_slice(&bytes).ok())
}

fn write<T: Serialize>(path: &Path, name: &str, value: &T) -> io::Result<()> {
    xattr::set(path, name, &serde_json::to_vec(value)?)
}
