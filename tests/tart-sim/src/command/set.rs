//! `tart set`.

use std::fs;
use std::path::Path;

use tart_sim::Fault;

use crate::cli;
use crate::command::clone::read_config;
use crate::error::{Error, Result};
use crate::home::config::{Config, Display, Os};
use crate::home::vm_dir::VmDir;
use crate::home::{self, Home, copy, identity};
use crate::host::faults;
use crate::output::file_error;

const GB: u64 = 1_000_000_000;

/// Changes a VM's configuration, then its disk. tart does not check whether the VM runs. What was changed
/// before a failure stays changed.
pub(crate) fn set(home: &Home, args: &cli::Set) -> Result<()> {
    let display = args.display.as_deref().map(parse_display).transpose()?;
    let vm = home.open_local(&args.name)?;
    let mut config = read_config(&vm)?;
    if let Some(cpu) = args.cpu {
        set_cpu(&mut config, cpu)?;
    }
    if let Some(mib) = args.memory {
        set_memory(&mut config, mib.saturating_mul(1 << 20))?;
    }
    if let Some(display) = display {
        config.display = display;
    }
    // Unlike the other settings, `set` resets this one unless it is given again.
    config.display_refit = args.display_refit;
    if args.random_mac {
        config.mac_address = identity::random_mac_address();
    }
    if args.random_serial && config.os == Os::Darwin {
        config.ecid = Some(identity::random_ecid());
    }
    if faults::is_on_for(Fault::NoSpace, "set") {
        return Err(Error::other(file_error::out_of_space(&vm.config_path())));
    }
    config.write(&vm.config_path())?;
    if let Some(disk) = &args.disk {
        replace_disk(home, &vm, Path::new(disk))?;
    }
    if let Some(gb) = args.disk_size {
        grow_disk(&vm, gb)?;
    }
    Ok(())
}

fn set_cpu(config: &mut Config, cpu: u32) -> Result<()> {
    if config.os == Os::Darwin && cpu < config.cpu_count_min {
        return Err(less_than_minimal(&format!("{} CPU cores", config.cpu_count_min), u64::from(cpu)));
    }
    config.cpu_count = cpu;
    Ok(())
}

fn set_memory(config: &mut Config, bytes: u64) -> Result<()> {
    if config.os == Os::Darwin && bytes < config.memory_size_min {
        return Err(less_than_minimal(&format!("{} bytes of memory", config.memory_size_min), bytes));
    }
    config.memory_size = bytes;
    Ok(())
}

fn less_than_minimal(minimum: &str, requested: u64) -> Error {
    Error::other(format!(
        "LessThanMinimalResourcesError: VM should have {minimum} at minimum (requested {requested})"
    ))
}

fn parse_display(text: &str) -> Result<Display> {
    let parsed = || {
        let (size, unit) = match text.len().checked_sub(2).map(|end| text.split_at_checked(end)) {
            Some(Some((size, unit @ ("pt" | "px")))) => (size, Some(unit.to_owned())),
            _ => (text, None),
        };
        let (width, height) = size.split_once('x')?;
        Some(Display { width: width.parse().ok()?, height: height.parse().ok()?, unit })
    };
    parsed().ok_or_else(|| Error::usage(format!("The value '{text}' is invalid for '--display <display>'")))
}

fn replace_disk(home: &Home, vm: &VmDir, disk: &Path) -> Result<()> {
    let tmp = home.tmp().join(format!("set-disk-{}", home::uuid()));
    copy::file(disk, &tmp).map_err(|error| Error::other(file_error::copying(disk, &tmp, &error)))?;
    fs::rename(&tmp, vm.disk_path()).map_err(Error::other)
}

fn grow_disk(vm: &VmDir, gb: u64) -> Result<()> {
    let current = fs::metadata(vm.disk_path()).map_err(Error::other)?.len();
    let new = gb.saturating_mul(GB);
    if new < current {
        return Err(Error::runtime(format!(
            "new disk size of {gb} GB should be larger than the current disk size of {} GB",
            current / GB
        )));
    }
    vm.resize_disk(new).map_err(Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_have_a_width_a_height_and_perhaps_a_unit() {
        for (text, expected) in [("1024x768", "1024x768"), ("800x600pt", "800x600pt"), ("1x2px", "1x2px")] {
            assert_eq!(parse_display(text).unwrap().to_string(), expected);
        }
        for nonsense in ["", "x", "1024", "1024x", "1024x768cm", "pt"] {
            assert_eq!(parse_display(nonsense).unwrap_err().exit_code(), 64, "{nonsense:?}");
        }
    }
}
