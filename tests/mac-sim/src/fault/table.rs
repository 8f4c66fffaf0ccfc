//! The table of faults: one row each. The README's tables are made from it.

use std::fmt;

use super::FaultError;
use super::parameter::Parameter;

/// What a fault happens to, by which the README lists it.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// launchd and `launchctl`.
    Launchd,
    /// Any simulated program.
    Program,
    /// The Mac as a whole.
    Mac,
}

macro_rules! faults {
    ($($subject:ident { $($variant:ident $file:literal ($parameter:expr) $effect:literal)+ })+) => {
        /// A fault or a knob of the simulated Mac.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Fault {
            $($(#[doc = $effect] $variant,)+)+
        }

        impl Fault {
            /// All faults, in the order of the README.
            pub(super) const ALL: &[Self] = &[$($(Self::$variant,)+)+];

            /// The name of the file that switches the fault on.
            pub(super) const fn file_name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $file,)+)+
                }
            }

            /// What the fault happens to.
            #[cfg(test)]
            const fn subject(self) -> Subject {
                match self {
                    $($(Self::$variant)|+ => Subject::$subject,)+
                }
            }

            /// What the file holds.
            pub(super) const fn parameter(self) -> Parameter {
                match self {
                    $($(Self::$variant => $parameter,)+)+
                }
            }

            /// What the simulator does while the fault is on.
            #[cfg(test)]
            const fn effect(self) -> &'static str {
                match self {
                    $($(Self::$variant => $effect,)+)+
                }
            }
        }
    };
}

faults! {
    Launchd {
        Flavour "flavour" (Parameter::Word(&["old", "new"]))
            "`old`: `bootout` of a job that still runs says 36, and a label that is not loaded has no line `Bad request.`; default `new`"
        LoadedCode "loaded-code" (Parameter::Word(&["5", "17", "37"]))
            "what `bootstrap` says of a label that is loaded, or is being unloaded; default 5"
        DisabledCode "disabled-code" (Parameter::Word(&["5", "119"]))
            "what `bootstrap` says of a label that is disabled; default 5"
        RefusedCode "refused-code" (Parameter::Word(&["109", "111", "122", "155"]))
            "the next `bootstrap` ends with this code, whatever the property list says, and loads nothing; the file is removed then"
        KickstartIdle "kickstart-idle" (Parameter::Labels)
            "`kickstart -k` of these jobs ends with 0 and leaves the process that runs alone"
        NeverSpawn "never-spawn" (Parameter::Labels)
            "these jobs are loaded but not started, whatever their property list says; `kickstart` starts them"
        BtmExhausted "btm-exhausted" (Parameter::Labels)
            "launchd no longer starts these jobs again when they end (`KeepAlive`); `kickstart` starts them"
        BtmDeny "btm-deny" (Parameter::Labels)
            "Background Task Management denies these jobs: they are not loaded at boot, and never started, not even by `kickstart`"
        CodesignKill "codesign-kill" (Parameter::Labels)
            "the kernel kills these jobs at their start because of their signature, however they are signed"
        CodesignKillNew "codesign-kill-new" (Parameter::Labels)
            "the same for a program that was written after the fault was switched on; older ones run"
        SlowBootout "slow-bootout" (Parameter::Duration)
            "a job that was booted out stays in launchd's table for that long after its process is gone"
        SpawnThrottle "spawn-throttle" (Parameter::Duration)
            "launchd waits at least that long before it starts a job again that has ended"
    }
    Program {
        Hang "hang" (Parameter::Calls)
            "these calls do nothing until the file is gone; only SIGKILL ends them earlier"
        RebootAt "reboot-at" (Parameter::Calls)
            "the Mac restarts when one of these calls is made, before the call does anything; the file is removed then"
        CutAt "cut-at" (Parameter::Calls)
            "all SSH connections end when one of these calls is made; the call goes on, and the file is removed"
        CutAtNth "cut-at-nth" (Parameter::NthCall)
            "all SSH connections end at that one of the calls to come; the call goes on, and the file is removed"
        Fail "fail" (Parameter::Calls)
            "these calls do nothing and end with exit code 1"
    }
    Mac {
        MacosVersion "macos-version" (Parameter::Version)
            "the release of macOS; default 26.6.2"
        HeadlessBoot "headless-boot" (Parameter::Nothing)
            "auto-login does not happen at boot, only when loginwindow is started again, as on a Mac without a screen"
    }
}

impl Fault {
    /// Refuses a content that is no parameter of the fault.
    pub(super) fn check(self, content: &str) -> Result<(), FaultError> {
        if self.parameter().accepts(content) {
            Ok(())
        } else {
            Err(FaultError::Parameter { fault: self, found: content.to_owned() })
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The README with its tables of faults made anew; each follows a comment that names the subject.
    fn readme(text: &str) -> String {
        let mut made = String::new();
        let mut is_old_row = false;
        for line in text.lines() {
            is_old_row &= line.starts_with('|');
            if is_old_row {
                continue;
            }
            made.push_str(line);
            made.push('\n');
            if let Some(subject) = line.strip_prefix("<!-- Made by `make docs`: ") {
                made.push_str(&table(subject.trim_end_matches(" -->")));
                is_old_row = true;
            }
        }
        made
    }

    fn table(subject: &str) -> String {
        let faults = Fault::ALL.iter().filter(|fault| format!("{:?}", fault.subject()) == subject);
        let rows = faults.map(|fault| {
            let parameter = match fault.parameter() {
                Parameter::Nothing => "–".to_owned(),
                parameter => parameter.to_string(),
            };
            format!("| `{fault}` | {parameter} | {} |\n", fault.effect())
        });
        format!("| file | parameter | effect |\n|---|---|---|\n{}", rows.collect::<String>())
    }

    #[test]
    fn the_readme_lists_every_fault() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
        let written = std::fs::read_to_string(path).unwrap();
        let made = readme(&written);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &made).unwrap();
        } else {
            assert!(written == made, "README.md does not have the table's faults; run `make docs`");
        }
        for fault in Fault::ALL {
            assert!(made.contains(&format!("\n| `{fault}` |")), "README.md has no table with {fault}");
        }
    }
}
