//! What the Mac says of itself: `sw_vers`, `sysctl`, `uname`, `arch`.

use std::fs;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use mac_sim::fault::{Fault, FaultDirectory};
use nix::unistd::gethostname;
use serde::{Deserialize, Serialize};

/// The file of what changes with each boot.
const BOOT: &str = "/private/var/run/mac-sim-boot.json";
const BUILD: &str = "25G83";
const RELEASE: &str = "25.6.0";

#[derive(Serialize, Deserialize)]
struct Boot {
    seconds: u64,
    microseconds: u32,
    session: String,
}

/// Notes when the Mac was started.
pub(in crate::mac) fn write_boot(started: Duration, session: &str) -> io::Result<()> {
    let boot = Boot {
        seconds: started.as_secs(),
        microseconds: started.subsec_micros(),
        session: session.to_owned(),
    };
    fs::write(BOOT, serde_json::to_vec(&boot)?)
}

fn boot() -> Option<Boot> {
    serde_json::from_slice(&fs::read(BOOT).ok()?).ok()
}

/// `kern.bootsessionuuid`.
pub(in crate::mac) fn boot_session() -> Option<String> {
    boot().map(|boot| boot.session)
}

/// The release of macOS.
pub(super) fn version() -> String {
    FaultDirectory::of_this_mac()
        .parameter(Fault::MacosVersion)
        .ok()
        .flatten()
        .unwrap_or_else(|| "26.6.2".to_owned())
}

pub(super) fn sw_vers(words: &[String]) -> ExitCode {
    let words: Vec<_> = words.iter().map(|word| word.trim_start_matches('-')).collect();
    match words.as_slice() {
        [] => println!("ProductName:\t\tmacOS\nProductVersion:\t\t{}\nBuildVersion:\t\t{BUILD}", version()),
        ["productName"] => println!("macOS"),
        ["productVersion"] => println!("{}", version()),
        ["buildVersion"] => println!("{BUILD}"),
        _ => {
            eprintln!(
                "Usage: sw_vers [--help|--productName|--productVersion|--productVersionExtra|--buildVersion]"
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

pub(super) fn arch(words: &[String]) -> ExitCode {
    if !words.is_empty() {
        return super::not_simulated("arch", words);
    }
    println!("arm64");
    ExitCode::SUCCESS
}

pub(super) fn uname(words: &[String]) -> ExitCode {
    let host = gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let version = format!("Darwin Kernel Version {RELEASE}: root:xnu-12377/RELEASE_ARM64_T8132");
    let letters: String = words.iter().map(|word| word.trim_start_matches('-')).collect();
    let letters = match letters.as_str() {
        "" => "s".to_owned(),
        "a" => "snrvm".to_owned(),
        letters => letters.to_owned(),
    };
    let mut parts = Vec::new();
    for letter in "snrvmp".chars().filter(|letter| letters.contains(*letter)) {
        parts.push(match letter {
            's' => "Darwin".to_owned(),
            'n' => host.clone(),
            'r' => RELEASE.to_owned(),
            'v' => version.clone(),
            'm' => "arm64".to_owned(),
            _ => "arm".to_owned(),
        });
    }
    if letters.chars().any(|letter| !"snrvmp".contains(letter)) {
        eprintln!("uname: illegal option\nusage: uname [-amnoprsv]");
        return ExitCode::FAILURE;
    }
    println!("{}", parts.join(" "));
    ExitCode::SUCCESS
}

/// The value of a name of `sysctl`.
fn value(name: &str) -> Option<String> {
    let boot = || boot().unwrap_or(Boot { seconds: 0, microseconds: 0, session: String::new() });
    Some(match name {
        "hw.memsize" => "17179869184".to_owned(),
        "hw.ncpu" | "hw.logicalcpu" | "hw.physicalcpu" => "10".to_owned(),
        "hw.perflevel0.logicalcpu" => "4".to_owned(),
        "hw.model" => "Mac16,10".to_owned(),
        "hw.pagesize" => "16384".to_owned(),
        "hw.optional.arm64" | "kern.hv_support" => "1".to_owned(),
        "machdep.cpu.brand_string" => "Apple M4".to_owned(),
        "kern.osproductversion" => version(),
        "kern.osversion" => BUILD.to_owned(),
        "kern.osrelease" => RELEASE.to_owned(),
        "kern.ostype" => "Darwin".to_owned(),
        "kern.hostname" => gethostname().unwrap_or_default().to_string_lossy().into_owned(),
        "kern.boottime" => {
            let boot = boot();
            let seconds = i64::try_from(boot.seconds).unwrap_or_default();
            let when = jiff::Timestamp::from_second(seconds).unwrap_or_default();
            let when = when.strftime("%a %b %e %H:%M:%S %Y");
            format!("{{ sec = {}, usec = {} }} {when}", boot.seconds, boot.microseconds)
        }
        "kern.bootsessionuuid" => boot().session,
        "kern.maxfilesperproc" => "61440".to_owned(),
        "vm.loadavg" => "{ 2.50 1.50 1.00 }".to_owned(),
        "vm.swapusage" => "total = 0.00M  used = 0.00M  free = 0.00M  (encrypted)".to_owned(),
        _ => return None,
    })
}

pub(super) fn sysctl(words: &[String]) -> ExitCode {
    let (bare, names) = match words {
        [option, names @ ..] if option == "-n" => (true, names),
        names => (false, names),
    };
    if names.is_empty() || names.iter().any(|name| name.starts_with('-') || name.contains('=')) {
        return super::not_simulated("sysctl", words);
    }
    let mut code = ExitCode::SUCCESS;
    for name in names {
        match value(name) {
            Some(value) if bare => println!("{value}"),
            Some(value) => println!("{name}: {value}"),
            None => {
                eprintln!("sysctl: unknown oid '{name}'");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
