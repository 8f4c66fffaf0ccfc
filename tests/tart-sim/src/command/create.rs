//! `tart create`.

use std::fs::{self, File};
use std::path::Path;

use fastrand::Rng;

use crate::cli;
use crate::command::validation::local_name;
use crate::error::{Error, Result};
use crate::home::config::{Config, DiskFormat, Os};
use crate::home::{self, Home};
use crate::output::{file_error, stdout};

/// Creates a VM with an empty disk.
pub(crate) fn create(home: &Home, args: &cli::Create) -> Result<()> {
    local_name("<name>", &args.name)?;
    let os = match (&args.from_ipsw, args.linux) {
        (_, true) => Os::Linux,
        (Some(ipsw), false) => {
            restore_image(home, ipsw)?;
            Os::Darwin
        }
        (None, false) => return Err(Error::usage("Please specify either a --from-ipsw or --linux option!")),
    };
    let target = home.vm_dir(&args.name);
    if target.is_initialized() {
        return Err(Error::runtime("VM directory is already initialized, preventing overwrite"));
    }
    let tmp = home.temporary()?;
    let format = if args.asif { DiskFormat::Asif } else { DiskFormat::Raw };
    let config = Config { disk_format: format, ..Config::new(os, &mut Rng::new()) };
    config.write(&tmp.vm().config_path())?;
    File::create(tmp.vm().nvram_path())
        .and_then(|file| file.set_len(os.nvram_bytes()))
        .and_then(|()| tmp.vm().resize_disk(args.disk_size.saturating_mul(1_000_000_000)))
        .map_err(|error| Error::other(file_error::creating(&tmp.vm().disk_path(), &error)))?;
    let _lock = home.lock()?;
    tmp.replace(target.path()).map_err(Error::other)
}

/// Finds the restore image. One from the network is put into the cache.
fn restore_image(home: &Home, source: &str) -> Result<()> {
    if source == "latest" {
        stdout::line("Looking up the latest supported IPSW...");
    }
    if source == "latest" || source.contains("://") {
        if home::entries(&home.ipsw_cache()).map_err(Error::other)?.is_empty() {
            stdout::line("Fetching the IPSW...");
            let name = format!("sha256:{:032x}{:032x}.ipsw", fastrand::u128(..), fastrand::u128(..));
            let path = home.ipsw_cache().join(name);
            return fs::write(&path, source)
                .map_err(|error| Error::other(file_error::creating(&path, &error)));
        }
        return Ok(());
    }
    let path = Path::new(source);
    File::open(path).map(drop).map_err(|error| Error::other(file_error::reading(path, &error)))
}
