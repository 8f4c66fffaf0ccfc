//! `tart login` and `tart logout`.

use std::io::{self, BufRead as _, Read as _};

use crate::cli;
use crate::error::{Error, Result};
use crate::oci::{Credentials, Keychain, Registry};
use crate::output::stdout;

/// Tries credentials and keeps them in the keychain.
pub(crate) fn login(args: &cli::Login) -> Result<()> {
    if args.username.is_some() != args.password_stdin {
        return Err(Error::usage("both --username and --password-stdin are required"));
    }
    let credentials = match &args.username {
        Some(username) => {
            let mut password = String::new();
            io::stdin().read_to_string(&mut password).map_err(Error::other)?;
            Credentials {
                username: username.clone(),
                password: password.trim_end_matches(['\r', '\n']).into(),
            }
        }
        None => Credentials { username: ask("username")?, password: ask("password")? },
    };
    if !args.no_validate {
        Registry::new(&args.host)
            .ping(&credentials)
            .map_err(|failure| Error::runtime(format!("invalid credentials: {failure}")))?;
    }
    Keychain::store(&args.host, credentials).map_err(Error::Other)
}

/// Removes credentials from the keychain.
pub(crate) fn logout(host: &str) -> Result<()> {
    Keychain::remove(host).map_err(Error::Other)
}

fn ask(what: &str) -> Result<String> {
    stdout::write(&format!("{what}: "));
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(Error::other)?;
    match line.trim_end_matches(['\r', '\n']) {
        "" => Err(Error::other(format!("CredentialRequired(which: \"{what}\")"))),
        answer => Ok(answer.into()),
    }
}
