//! Code signatures, and the kernel's memory of the code that it has started.
//!
//! As on a Mac, the signature is part of the program's bytes: signing changes them, and a copy is signed too. It stands behind the last byte
//! that the machine's loader looks at. The kernel remembers the code of each inode that it has started, here in an extended attribute;
//! other code in the same inode gets the process killed until the Mac reboots.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use mac_sim::settings::LINUX;
use serde::{Deserialize, Serialize};

use super::programs::host_facts;

const EXECUTED: &str = "user.mac-sim.executed";

/// The first bytes of a compiled program.
const COMPILED: &[u8] = b"\x7fELF";

/// The last bytes of a signed program. Before them is the length of the signature, and before that the signature.
const MAGIC: &[u8; 8] = b"MACSIGN1";
const TAIL: usize = MAGIC.len() + size_of::<u32>();

/// An ad-hoc signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signature {
    /// SHA-256 of the program without the signature, in hexadecimal digits.
    pub(super) hash: String,
    pub(super) identifier: String,
}

/// The code that the kernel has started from an inode, and by what it is recognised without reading it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Executed {
    hash: String,
    size: u64,
    modified: (i64, i64),
    boot: String,
}

/// Whether the kernel lets a program run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Execution {
    Allowed,
    /// It is not signed, or was changed after it was signed, or its inode had other code when it was last started.
    Killed,
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
    let boot = host_facts::boot_session().unwrap_or_default();
    let executed: Option<Executed> =
        xattr::get(&program, EXECUTED)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let known = executed.filter(|executed| executed.boot == boot);
    let metadata = fs::metadata(&program)?;
    let (size, modified) = (metadata.len(), (metadata.mtime(), metadata.mtime_nsec()));
    // A large program that looks as it did is not read again.
    if known.as_ref().is_some_and(|known| (known.size, known.modified) == (size, modified)) {
        return Ok(Execution::Allowed);
    }
    let Some((signature, length)) = read(&program)? else { return Ok(Execution::Killed) };
    let is_other = known.is_some_and(|known| known.hash != signature.hash);
    if is_other || hash(&program, length)? != signature.hash {
        return Ok(Execution::Killed);
    }
    let executed = Executed { hash: signature.hash, size, modified, boot };
    xattr::set(&program, EXECUTED, &serde_json::to_vec(&executed)?)?;
    Ok(Execution::Allowed)
}

/// The signature of a program.
pub(super) fn signature(path: &Path) -> io::Result<Option<Signature>> {
    Ok(read(path)?.map(|(signature, _)| signature))
}

/// Whether a program's signature fits its code.
pub(super) fn verify(path: &Path) -> io::Result<Validity> {
    let Some((signature, length)) = read(path)? else { return Ok(Validity::NotSigned) };
    Ok(if hash(path, length)? == signature.hash { Validity::Valid } else { Validity::Modified })
}

/// Replaces the signature of a program. It must be a new file that has never run.
pub(super) fn sign(path: &Path, identifier: &str) -> io::Result<()> {
    let length = match read(path)? {
        Some((_, length)) => length,
        None => fs::metadata(path)?.len(),
    };
    let signature = Signature { hash: hash(path, length)?, identifier: identifier.to_owned() };
    let bytes = serde_json::to_vec(&signature)?;
    let mut file = File::options().write(true).open(path)?;
    file.set_len(length)?;
    file.seek(SeekFrom::End(0))?;
    file.write_all(&bytes)?;
    file.write_all(&u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes())?;
    file.write_all(MAGIC)?;
    file.sync_all()
}

/// Whether a file is a program that can be signed.
pub(super) fn is_compiled(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut head)?;
    Ok(head == COMPILED)
}

/// The signature, and the length of the code before it.
fn read(path: &Path) -> io::Result<Option<(Signature, u64)>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let Some(before_tail) = size.checked_sub(TAIL as u64) else { return Ok(None) };
    file.seek(SeekFrom::Start(before_tail))?;
    let mut tail = [0; TAIL];
    file.read_exact(&mut tail)?;
    let Some(length) = tail.strip_suffix(MAGIC).and_then(|length| length.try_into().ok()) else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(length);
    let Some(start) = before_tail.checked_sub(length.into()) else { return Ok(None) };
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(length.into()).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes).ok().map(|signature| (signature, start)))
}

/// The digest of the first bytes of a file.
fn hash(path: &Path, length: u64) -> io::Result<String> {
    digest(&mut File::open(path)?.take(length), "sha256sum")
}

/// A digest by one of the machine's programs, which are far quicker than an unoptimised build of this one.
pub(super) fn digest(content: &mut dyn io::Read, program: &str) -> io::Result<String> {
    let program = Path::new(LINUX).join("usr/bin").join(program);
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        io::copy(content, &mut stdin)?;
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let digest = text.split_whitespace().next().filter(|_| output.status.success());
    digest.map(str::to_owned).ok_or_else(|| io::Error::other("cannot compute a digest"))
}
