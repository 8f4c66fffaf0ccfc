//! A password, from standard input or from a prompt that does not show it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};

use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};

use crate::host::Secret;

/// What a terminal makes of Ctrl-C.
const INTERRUPT: u8 = 3;
/// No password is longer.
const MAX: u64 = 1024;

/// A password that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PasswordError {
    /// It cannot be read.
    #[error("cannot read the password")]
    Read(#[source] io::Error),
    /// There is no terminal to ask at.
    #[error("there is no terminal to ask for the password at; give it with --password-stdin")]
    NoTerminal(#[source] io::Error),
    /// It is empty. An empty password would be tried, and count as a wrong one.
    #[error("the password is empty")]
    Empty,
    /// It is what a provider shows in place of a password.
    #[error("`<sealed>` is no password: it stands for one that is no longer shown; set a new one on the Mac")]
    Sealed,
    /// The user has typed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// It has a character that no password of macOS has.
    #[error("the password has a control character")]
    ControlCharacter,
}

/// Reads the first line of standard input.
pub(crate) fn from_stdin() -> Result<Secret, PasswordError> {
    let mut line = Vec::new();
    let mut input = BufReader::new(io::stdin().lock().take(MAX));
    input.read_until(b'\n', &mut line).map_err(PasswordError::Read)?;
    check(line)
}

/// Asks at the terminal.
pub(crate) fn ask(prompt: &str) -> Result<Secret, PasswordError> {
    let mut terminal =
        OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(PasswordError::NoTerminal)?;
    let mut line = Vec::new();
    {
        // Before the prompt: what is typed at it is never shown.
        let _silent = Silent::new(&terminal).map_err(PasswordError::Read)?;
        write!(&terminal, "{prompt}: ").map_err(PasswordError::Read)?;
        let mut input = BufReader::new((&terminal).take(MAX));
        // The terminal hands a line over at Ctrl-C, too.
        while !matches!(line.last(), Some(b'\n' | &INTERRUPT)) {
            let piece = input.fill_buf().map_err(PasswordError::Read)?;
            let Some(byte) = piece.first().copied() else { break };
            line.push(byte);
            input.consume(1);
        }
    }
    let _ = writeln!(terminal);
    if line.last() == Some(&INTERRUPT) {
        return Err(PasswordError::Interrupted);
    }
    check(line)
}

fn check(mut line: Vec<u8>) -> Result<Secret, PasswordError> {
    while matches!(line.last(), Some(b'\n' | b'\r')) {
        line.pop();
    }
    match line.as_slice() {
        b"" => Err(PasswordError::Empty),
        b"<sealed>" => Err(PasswordError::Sealed),
        password if password.iter().any(u8::is_ascii_control) => Err(PasswordError::ControlCharacter),
        _ => Ok(Secret::new(line)),
    }
}

/// A terminal that does not show what is typed, until this is dropped. Ctrl-C ends the line instead of this program, which would leave the
/// terminal as it is.
struct Silent<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Silent<'a> {
    fn new(terminal: &'a File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO | LocalFlags::ISIG);
        silent.control_chars[SpecialCharacterIndices::VEOL as usize] = INTERRUPT;
        tcsetattr(terminal, SetArg::TCSAFLUSH, &silent)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, SetArg::TCSAFLUSH, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_one_line_that_is_not_empty() {
        assert_eq!(check(b"a b'\"\n".to_vec()).unwrap().expose(), b"a b'\"");
        assert!(matches!(check(b"\r\n".to_vec()), Err(PasswordError::Empty)));
        assert!(matches!(check(b"<sealed>\n".to_vec()), Err(PasswordError::Sealed)));
        assert!(matches!(check(b"a\0b".to_vec()), Err(PasswordError::ControlCharacter)));
    }
}
