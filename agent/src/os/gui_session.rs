//! The GUI session and the keychain of the agent's user. macOS asks for both before it starts a VM.

use std::time::Duration;

use command::Output;
use nix::unistd::getuid;
use tokio::process::Command;

/// How long each program may take. A keychain that is locked may ask for its password at the screen, and wait.
const DEADLINE: Duration = Duration::from_secs(5);
/// How much of a program's words a message has.
const MAX_WORDS: usize = 200;

/// What a look at one thing found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Presence {
    Present,
    /// It is missing, and this says so to a user.
    Absent(String),
    /// The look failed, so that it proves nothing.
    #[default]
    Unknown,
}

/// What a look at the session of the agent's user found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GuiSession {
    pub(crate) session: Presence,
    pub(crate) keychain: Presence,
}

impl GuiSession {
    /// Whether the look has found the session and an open keychain.
    pub(crate) fn is_there(&self) -> bool {
        self.session == Presence::Present && self.keychain == Presence::Present
    }
}

/// Looks at the session, and at its keychain if there is a session.
pub(crate) async fn look() -> GuiSession {
    let domain = format!("gui/{}", getuid());
    let session = match ask("launchctl", &["print", &domain]).await {
        Some(output) => session(&domain, &output),
        None => Presence::Unknown,
    };
    if let Presence::Absent(_) = session {
        return GuiSession { session, keychain: Presence::Unknown };
    }
    // Without an argument it shows the user's default keychain.
    let keychain = ask("security", &["show-keychain-info"]).await;
    GuiSession { session, keychain: keychain.map_or(Presence::Unknown, |output| keychain_state(&output)) }
}

/// A program's answer; `None` if it cannot be run or does not end.
async fn ask(program: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments);
    command::run(command, DEADLINE).await.ok()
}

/// Reads the answer of `launchctl print gui/<uid>`.
fn session(domain: &str, output: &Output) -> Presence {
    let advice = "log the agent's user in at the screen of this Mac, and have macOS do so after each restart";
    if output.status.success() {
        let kind = output.stdout.lines().find_map(|line| line.trim().strip_prefix("session = "));
        return match kind {
            Some("Aqua") => Presence::Present,
            Some(kind) => {
                let kind: String = kind.chars().take(MAX_WORDS).collect();
                Presence::Absent(format!("the session {domain} is of the kind {kind}, not Aqua; {advice}"))
            }
            None => Presence::Unknown,
        };
    }
    match output.stderr.lines().find(|line| line.contains("Could not find domain")) {
        Some(_) => Presence::Absent(format!("there is no GUI session ({domain}); {advice}")),
        None => Presence::Unknown,
    }
}

/// Reads the answer of `security show-keychain-info`.
fn keychain_state(output: &Output) -> Presence {
    if output.status.success() {
        return Presence::Present;
    }
    let refusals = ["User interaction is not allowed", "default keychain could not be found"];
    match output.stderr.lines().find(|line| refusals.iter().any(|words| line.contains(words))) {
        Some(line) => {
            let line: String = line.trim().chars().take(MAX_WORDS).collect();
            Presence::Absent(format!(
                "the keychain of the agent's user is locked ({line}); unlock it with `security unlock-keychain`, or log the user in \
                 at the screen of this Mac"
            ))
        }
        None => Presence::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn output(code: i32, stdout: &str, stderr: &str) -> Output {
        Output { status: ExitStatus::from_raw(code << 8), stdout: stdout.into(), stderr: stderr.into() }
    }

    fn word(found: &Presence) -> &'static str {
        match found {
            Presence::Present => "present",
            Presence::Absent(_) => "absent",
            Presence::Unknown => "unknown",
        }
    }

    #[test]
    fn only_clear_words_of_launchctl_say_that_there_is_no_session() {
        for (code, stdout, stderr, expected) in [
            (0, "gui/501 = {\n\ttype = login\n\tsession = Aqua\n}\n", "", "present"),
            (0, "gui/501 = {\n\tsession = Background\n}\n", "", "absent"),
            (0, "gui/501 = {\n\ttype = login\n}\n", "", "unknown"),
            (0, "", "", "unknown"),
            (112, "", "Bad request.\nCould not find domain for user gui: 501\n", "absent"),
            (1, "", "Operation not permitted\n", "unknown"),
            (64, "", "Unrecognized target specifier.\n", "unknown"),
        ] {
            let found = session("gui/501", &output(code, stdout, stderr));
            assert_eq!(word(&found), expected, "{code} {stdout} {stderr}");
        }
    }

    #[test]
    fn only_clear_words_of_security_say_that_the_keychain_is_locked() {
        let info = "Keychain \"/Users/admin/Library/Keychains/login.keychain-db\" no-timeout\n";
        for (code, stderr, expected) in [
            (0, info, "present"),
            (36, "security: SecKeychainCopySettings: User interaction is not allowed.\n", "absent"),
            (37, "security: SecKeychainCopySettings: A default keychain could not be found.\n", "absent"),
            (1, "security: out of memory\n", "unknown"),
            (1, "", "unknown"),
        ] {
            assert_eq!(word(&keychain_state(&output(code, "", stderr))), expected, "{code} {stderr}");
        }
    }

    #[tokio::test]
    async fn a_program_that_is_missing_proves_nothing() {
        assert_eq!(ask("no-such-program", &[]).await, None);
    }
}
