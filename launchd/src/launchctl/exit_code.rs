//! The exit codes of `launchctl`.

use std::fmt;

macro_rules! exit_codes {
    ($($name:ident = $number:literal, $text:literal;)+) => {
        /// What `launchctl` says by its exit code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ExitCode {
            $(#[doc = concat!(stringify!($number), ": ", $text)] $name,)+
            /// A number that is in no list.
            Other(i32),
        }

        impl From<i32> for ExitCode {
            fn from(number: i32) -> Self {
                match number {
                    $($number => Self::$name,)+
                    other => Self::Other(other),
                }
            }
        }

        impl ExitCode {
            /// The number.
            pub fn number(self) -> i32 {
                match self {
                    $(Self::$name => $number,)+
                    Self::Other(number) => number,
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                    Self::Other(_) => "an error that launchctl alone knows",
                }
            }
        }

        #[cfg(test)]
        const ALL: &[ExitCode] = &[$(ExitCode::$name),+];
    };
}

exit_codes! {
    Success = 0, "success";
    NotPermitted = 1, "Operation not permitted";
    NoSuchProcess = 3, "No such process";
    InputOutput = 5, "Input/output error";
    FileExists = 17, "File exists";
    InProgress = 36, "Operation now in progress";
    AlreadyInProgress = 37, "Operation already in progress";
    Usage = 64, "usage error";
    InvalidPath = 108, "Invalid path";
    InvalidPlist = 109, "Invalid property list";
    InvalidLabel = 110, "Invalid or missing service identifier";
    InvalidProgram = 111, "Invalid or missing Program/ProgramArguments";
    NoDomain = 112, "Could not find specified domain";
    NoService = 113, "Could not find specified service";
    Disabled = 119, "Service is disabled";
    BadPermissions = 122, "Path had bad ownership/permissions";
    DomainTearingDown = 124, "Domain is tearing down";
    DomainUnsupported = 125, "Domain does not support specified action";
    SeveralErrors = 133, "Multiple errors were returned";
    WrongSession = 134, "Service cannot load in requested session";
    ReservedName = 140, "Service name is reserved or invalid";
    SystemIntegrity = 150, "Operation not permitted while System Integrity Protection is engaged";
    Quarantined = 155, "Refusing to execute/trust quarantined program/file";
}

impl ExitCode {
    /// Whether a job that was booted out is gone, or will be.
    pub fn is_booted_out(self) -> bool {
        matches!(self, Self::Success | Self::NoSuchProcess | Self::InProgress | Self::NoService)
    }

    /// Whether a bootstrap may work a moment later: the previous job of that label may still end. 5 is macOS's word for anything else,
    /// too, so that only a deadline tells.
    pub fn is_bootstrap_retried(self) -> bool {
        matches!(self, Self::InputOutput | Self::FileExists | Self::InProgress | Self::AlreadyInProgress)
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.number(), self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_number_and_back() {
        for &code in ALL {
            assert_eq!(ExitCode::from(code.number()), code);
        }
        assert_eq!(ExitCode::from(99), ExitCode::Other(99));
        assert_eq!(ExitCode::from(113).to_string(), "113: Could not find specified service");
    }

    #[test]
    fn a_bootout_may_find_nothing_and_a_bootstrap_may_come_too_early() {
        let numbers = |is: fn(ExitCode) -> bool| -> Vec<i32> {
            ALL.iter().filter(|&&code| is(code)).map(|code| code.number()).collect()
        };
        assert_eq!(numbers(ExitCode::is_booted_out), [0, 3, 36, 113]);
        assert_eq!(numbers(ExitCode::is_bootstrap_retried), [5, 17, 36, 37]);
    }
}
