//! `codesign` and `xattr`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::not_simulated;
use crate::mac::signature::{self, Validity};

const USAGE: &str = "Usage: codesign -s identity [-fv*] [-o flags] [-r reqs] [-i ident] path ... # sign\n\
    \x20      codesign -v [-v*] [-R=<req string>|-R <req file path>] path|[+]pid ... # verify\n\
    \x20      codesign -d [options] path ... # display contents";

/// What `codesign` is asked to do.
#[derive(Debug, Default)]
struct Options {
    identity: Option<String>,
    identifier: Option<String>,
    force: bool,
    verify: bool,
    display: bool,
    verbosity: usize,
    paths: Vec<PathBuf>,
}

fn parse(words: &[String]) -> Option<Options> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--sign" | "-s" => options.identity = Some(words.next()?.clone()),
            "--identifier" | "-i" => options.identifier = Some(words.next()?.clone()),
            "--force" | "-f" => options.force = true,
            "--verify" => options.verify = true,
            "--display" | "-d" => options.display = true,
            "--verbose" => options.verbosity += 1,
            "--deep" | "--strict" | "--timestamp=none" => {}
            "--options" | "-o" | "--entitlements" => {
                words.next()?;
            }
            flags if flags.starts_with("-d") && flags[2..].chars().all(|letter| letter == 'v') => {
                options.display = true;
                options.verbosity += flags.len() - 2;
            }
            flags if flags.starts_with("-v") && flags[1..].chars().all(|letter| letter == 'v') => {
                options.verbosity += flags.len() - 1;
            }
            "-fs" => {
                options.force = true;
                options.identity = Some(words.next()?.clone());
            }
            option if option.starts_with('-') => return None,
            path => options.paths.push(path.into()),
        }
    }
    // The first -v asks for a verification, each further one for more words.
    if options.identity.is_none() && !options.display && !options.verify {
        options.verify = options.verbosity > 0;
        options.verbosity = options.verbosity.saturating_sub(1);
    }
    let actions = [options.identity.is_some(), options.verify, options.display];
    (actions.iter().filter(|is| **is).count() == 1 && !options.paths.is_empty()).then_some(options)
}

pub(super) fn main(words: &[String]) -> ExitCode {
    let Some(options) = parse(words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut code = ExitCode::SUCCESS;
    for path in &options.paths {
        let done = match &options.identity {
            _ if !path.exists() => Err("No such file or directory".to_owned()),
            Some(identity) => sign(path, identity, &options),
            None if options.display => display(path, options.verbosity),
            None => verify(path, options.verbosity),
        };
        if let Err(words) = done {
            eprintln!("{}: {words}", path.display());
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn sign(path: &Path, identity: &str, options: &Options) -> Result<(), String> {
    if identity != "-" {
        return Err("no identity found".to_owned());
    }
    let told = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
        io::ErrorKind::StorageFull => "No space left on device".to_owned(),
        _ => "internal error in Code Signing subsystem".to_owned(),
    };
    if signature::signature(path).map_err(told)?.is_some() {
        if !options.force {
            return Err("is already signed".to_owned());
        }
        eprintln!("{}: replacing existing signature", path.display());
    }
    // codesign writes a new file and renames it, so that the signed program has an inode that has never run.
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let temporary = path.with_file_name(format!("{name}.cstemp"));
    let identifier = options.identifier.clone().unwrap_or(name);
    let signed = copy(path, &temporary)
        .and_then(|()| signature::sign(&temporary, &identifier))
        .and_then(|()| fs::rename(&temporary, path));
    signed.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        told(error)
    })
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    // The user must be able to write the program, not only its directory.
    drop(File::options().append(true).open(from).or_else(|error| match error.raw_os_error() {
        // It runs at the moment.
        Some(number) if number == nix::errno::Errno::ETXTBSY as i32 => File::open(from),
        _ => Err(error),
    })?);
    fs::copy(from, to)?;
    let metadata = fs::metadata(from)?;
    if super::is_root() {
        chown(to, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    File::open(to)?.sync_all()
}

fn verify(path: &Path, verbosity: usize) -> Result<(), String> {
    match signature::verify(path).map_err(|error| error.to_string())? {
        Validity::Valid if verbosity > 0 => {
            eprintln!("{0}: valid on disk\n{0}: satisfies its Designated Requirement", path.display());
            Ok(())
        }
        Validity::Valid => Ok(()),
        Validity::NotSigned => Err("code object is not signed at all\nIn architecture: arm64".to_owned()),
        Validity::Modified => {
            Err("invalid signature (code or signature have been modified)\nIn architecture: arm64".to_owned())
        }
    }
}

fn display(path: &Path, verbosity: usize) -> Result<(), String> {
    let signature = signature::signature(path).map_err(|error| error.to_string())?;
    let signature = signature.ok_or("code object is not signed at all")?;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    eprintln!("Executable={}", path.display());
    if verbosity > 0 {
        eprintln!("Identifier={}\nFormat=Mach-O thin (arm64)", signature.identifier);
        eprintln!("CodeDirectory v=20400 size=12345 flags=0x2(adhoc) hashes=383+0 location=embedded");
        if verbosity > 2 {
            eprintln!("CDHash={}", &signature.code.hash[..40]);
        }
        eprintln!("Signature=adhoc\nInfo.plist=not bound\nTeamIdentifier=not set\nSealed Resources=none");
        eprintln!("Internal requirements count=0 size=12");
    }
    Ok(())
}

/// Only what installers use it for: to take the mark of a download off. Nothing that comes by ssh, tar or curl has it.
pub(super) fn xattr(words: &[String]) -> ExitCode {
    match words {
        [option, name, path] if option == "-d" && Path::new(path).exists() => {
            eprintln!("xattr: {path}: No such xattr: {name}");
            ExitCode::FAILURE
        }
        // Recursively, it says nothing of files that do not have it.
        [option, _, path] if option == "-dr" && Path::new(path).exists() => ExitCode::SUCCESS,
        [option, _, path] if option == "-d" || option == "-dr" => {
            eprintln!("xattr: No such file: {path}");
            ExitCode::FAILURE
        }
        _ => not_simulated("xattr", words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Option<Options> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_first_v_verifies_and_the_second_says_more() {
        for (line, verbosity) in
            [("--verify x", 0), ("-v x", 0), ("-v -v x", 1), ("-vv x", 1), ("--verify --verbose x", 1)]
        {
            let options = options(line).unwrap();
            assert!(options.verify, "{line}");
            assert_eq!(options.verbosity, verbosity, "{line}");
        }
        assert_eq!(options("-dvvv x").unwrap().verbosity, 3);
    }

    #[test]
    fn what_is_no_action_is_a_usage_error() {
        for line in ["x", "--sign -", "--sing - x", "--verify --sign - x"] {
            assert!(options(line).is_none(), "{line}");
        }
        assert!(options("--force --sign - x").unwrap().force);
    }
}
