//! `networksetup` and `softwareupdate`, as far as a host's set-up looks at them.

use std::process::ExitCode;

use super::not_simulated;

pub(super) fn networksetup(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    match strings.as_slice() {
        ["-listallnetworkservices"] => {
            println!("An asterisk (*) denotes that a network service is disabled.\nEthernet\nWi-Fi");
        }
        ["-listallhardwareports"] => {
            println!(
                "\nHardware Port: Ethernet\nDevice: en0\nEthernet Address: 00:00:5e:00:53:01\n\nHardware Port: Wi-Fi\nDevice: en1\nEthernet Address: 00:00:5e:00:53:02\n\nVLAN Configurations\n==================="
            );
        }
        ["-listVLANs"] => println!("There are no VLANs currently configured on this system."),
        _ => return not_simulated("networksetup", words),
    }
    ExitCode::SUCCESS
}

pub(super) fn softwareupdate(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    match strings.as_slice() {
        ["--schedule"] => println!("Automatic checking for updates is turned on"),
        ["-l" | "--list"] => {
            println!("Software Update Tool\n\nFinding available software\nNo new software available.")
        }
        _ => return not_simulated("softwareupdate", words),
    }
    ExitCode::SUCCESS
}
