//! Users and their secrets: `dscl`, `sysadminctl`, `security`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mac_sim::settings::Settings;
use nix::unistd::{Group, User, geteuid};

use super::not_simulated;

/// Reads the records of users and groups, and checks passwords.
pub(super) fn dscl(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    match strings.as_slice() {
        [".", "-read" | "read", path, keys @ ..] => match path.strip_prefix("/Users/") {
            Some(name) => read_user(name, keys),
            None => match path.strip_prefix("/Groups/") {
                Some(name) => read_group(name),
                None => not_simulated("dscl", words),
            },
        },
        [".", "-list" | "list", "/Users"] => {
            let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
            text.lines().filter_map(|line| line.split(':').next()).for_each(|name| println!("{name}"));
            ExitCode::SUCCESS
        }
        ["." | "/Local/Default", "-authonly" | "authonly", name, password] => {
            let right = Settings::of_this_mac()
                .map(|settings| settings.user == *name && settings.password == *password);
            match right {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => {
                    eprintln!("Authentication for node /Local/Default failed. (-14090, eDSAuthFailed)");
                    ExitCode::from(161)
                }
                // Only root may read the password.
                Err(_) => not_simulated("dscl -authonly without root", &[]),
            }
        }
        _ => not_simulated("dscl", words),
    }
}

fn missing() -> ExitCode {
    eprintln!("<dscl_cmd> DS Error: -14136 (eDSRecordNotFound)");
    ExitCode::from(56)
}

fn read_user(name: &str, keys: &[&str]) -> ExitCode {
    let Some(user) = User::from_name(name).ok().flatten() else { return missing() };
    let values = [
        ("NFSHomeDirectory", user.dir.display().to_string()),
        ("PrimaryGroupID", user.gid.to_string()),
        ("RealName", user.name.clone()),
        ("RecordName", user.name.clone()),
        ("UniqueID", user.uid.to_string()),
        ("UserShell", user.shell.display().to_string()),
    ];
    if let Some(unknown) = keys.iter().find(|key| !values.iter().any(|(known, _)| known == *key)) {
        println!("No such key: {unknown}");
        return ExitCode::SUCCESS;
    }
    for (name, value) in values.iter().filter(|(name, _)| keys.is_empty() || keys.contains(name)) {
        println!("{name}: {value}");
    }
    ExitCode::SUCCESS
}

fn read_group(name: &str) -> ExitCode {
    let Some(group) = Group::from_name(name).ok().flatten() else { return missing() };
    println!("GroupMembership: {}\nPrimaryGroupID: {}\nRecordName: {name}", group.mem.join(" "), group.gid);
    ExitCode::SUCCESS
}

/// Only what auto-login needs. It says everything on stderr, as the real one does.
pub(super) fn sysadminctl(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    match strings.as_slice() {
        ["-autologin", "status"] => {
            let file = Path::new("/Library/Preferences/com.apple.loginwindow.plist");
            match super::defaults::read(file, "autoLoginUser")
                .and_then(|value| value.as_string().map(str::to_owned))
            {
                Some(user) => eprintln!("Automatic login user: {user}"),
                None => eprintln!("Automatic login is OFF"),
            }
            ExitCode::SUCCESS
        }
        ["-screenLock", "status"] => {
            eprintln!("screenLock is off");
            ExitCode::SUCCESS
        }
        _ => not_simulated("sysadminctl", &words.iter().take(1).cloned().collect::<Vec<_>>()),
    }
}

/// The file of a keychain: `unlocked` or `locked`, and its password.
fn keychain(name: &str) -> PathBuf {
    if name.starts_with('/') {
        return name.into();
    }
    let home = User::from_uid(geteuid()).ok().flatten().map(|user| user.dir).unwrap_or_default();
    let name = if name.ends_with("-db") { name.to_owned() } else { format!("{name}-db") };
    home.join("Library/Keychains").join(name)
}

fn store(path: &Path, password: &str, is_unlocked: bool) -> ExitCode {
    let state = if is_unlocked { "unlocked" } else { "locked" };
    let written = fs::create_dir_all(path.parent().unwrap_or(path))
        .and_then(|()| fs::write(path, format!("{state}\n{password}")))
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o600)));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("security: {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// A keychain's state and password.
fn stored(path: &Path) -> Option<(bool, String)> {
    let text = fs::read_to_string(path).ok()?;
    let (state, password) = text.split_once('\n')?;
    Some((state == "unlocked", password.to_owned()))
}

pub(super) fn security(words: &[String]) -> ExitCode {
    let strings: Vec<_> = words.iter().map(String::as_str).collect();
    let missing = |name: &str| {
        eprintln!("security: SecKeychainUnlock {name}: The specified keychain could not be found.");
        ExitCode::from(50)
    };
    match strings.as_slice() {
        ["create-keychain", "-p", password, name] => {
            let path = keychain(name);
            if path.exists() {
                eprintln!(
                    "security: SecKeychainCreate {name}: A keychain with the same name already exists."
                );
                return ExitCode::from(48);
            }
            store(&path, password, true)
        }
        ["unlock-keychain", "-p", password, name] => match stored(&keychain(name)) {
            None => missing(name),
            Some((_, right)) if right == *password => store(&keychain(name), password, true),
            Some(_) => {
                eprintln!(
                    "security: SecKeychainUnlock {name}: The user name or passphrase you entered is not correct."
                );
                ExitCode::from(51)
            }
        },
        ["lock-keychain", name] => match stored(&keychain(name)) {
            None => missing(name),
            Some((_, password)) => store(&keychain(name), &password, false),
        },
        ["show-keychain-info", name] => match stored(&keychain(name)) {
            None => missing(name),
            Some((true, _)) => {
                eprintln!("Keychain \"{name}\" no-timeout");
                ExitCode::SUCCESS
            }
            Some((false, _)) => {
                eprintln!("security: SecKeychainCopySettings {name}: User interaction is not allowed.");
                ExitCode::from(36)
            }
        },
        ["login-keychain" | "default-keychain", "-s", name] => {
            let path = keychain(name);
            store(&path.with_file_name("default"), &path.display().to_string(), true)
        }
        ["login-keychain" | "default-keychain"] => {
            let default = keychain("login.keychain").with_file_name("default");
            let path = stored(&default).map_or_else(|| keychain("login.keychain"), |(_, path)| path.into());
            println!("    \"{}\"", path.display());
            ExitCode::SUCCESS
        }
        _ => not_simulated("security", &words.iter().take(1).cloned().collect::<Vec<_>>()),
    }
}
