//! `pfctl`: its commands and its output. Only this module and the loader's script know what they look like.

use std::time::Duration;

use launchd::{Call, Host, HostError};

const PFCTL: &str = "/sbin/pfctl";
const DEADLINE: Duration = Duration::from_secs(15);

/// `pfctl` on a Mac.
pub(super) struct Pfctl<'h, H> {
    host: &'h H,
}

/// A command of `pfctl` that did not work.
#[derive(Debug, thiserror::Error)]
pub enum PfctlError {
    /// The command gave no answer.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The command failed.
    #[error("`pfctl {command}` failed: {message}")]
    Failed {
        /// The command.
        command: String,
        /// The last line of its standard error.
        message: String,
    },
}

/// Where a table is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// In the main ruleset.
    Main,
    /// In an anchor.
    Anchor(String),
}

impl Scope {
    fn arguments(&self) -> Vec<&str> {
        match self {
            Self::Main => Vec::new(),
            Self::Anchor(name) => vec!["-a", name],
        }
    }
}

impl<'h, H: Host> Pfctl<'h, H> {
    pub(super) fn of(host: &'h H) -> Self {
        Self { host }
    }

    /// The filter rules, a line each.
    pub(super) async fn rules(&self, scope: &Scope) -> Result<Vec<String>, PfctlError> {
        self.lines(scope, &["-s", "rules"]).await
    }

    /// The translation rules, a line each.
    pub(super) async fn translations(&self, scope: &Scope) -> Result<Vec<String>, PfctlError> {
        self.lines(scope, &["-s", "nat"]).await
    }

    /// The names of the tables.
    pub(super) async fn tables(&self, scope: &Scope) -> Result<Vec<String>, PfctlError> {
        self.lines(scope, &["-s", "Tables"]).await
    }

    /// Removes the rules of an anchor; its persistent tables stay.
    pub(super) async fn flush_rules(&self, anchor: &str) -> Result<(), PfctlError> {
        self.call(&["-a", anchor, "-F", "rules"]).await.map(drop)
    }

    /// Destroys a table, persistent or not. It fails while a rule names the table.
    pub(super) async fn kill_table(&self, scope: &Scope, table: &str) -> Result<(), PfctlError> {
        let mut arguments = scope.arguments();
        arguments.extend(["-t", table, "-T", "kill"]);
        self.call(&arguments).await.map(drop)
    }

    /// Loads the main ruleset. What other programs have added to it is gone: see the module's beginning.
    pub(super) async fn load_main(&self) -> Result<(), PfctlError> {
        self.call(&["-f", "/etc/pf.conf"]).await.map(drop)
    }

    async fn lines(&self, scope: &Scope, what: &[&str]) -> Result<Vec<String>, PfctlError> {
        let mut arguments = scope.arguments();
        arguments.extend(what);
        let stdout = self.call(&arguments).await?;
        Ok(stdout.lines().map(str::trim).filter(|line| !line.is_empty()).map(Into::into).collect())
    }

    async fn call(&self, arguments: &[&str]) -> Result<String, PfctlError> {
        let argv: Vec<&str> = std::iter::once(PFCTL).chain(arguments.iter().copied()).collect();
        let output = self.host.run(Call::new(&argv, DEADLINE)).await?;
        if output.is_success() {
            return Ok(output.stdout);
        }
        Err(PfctlError::Failed { command: arguments.join(" "), message: output.message() })
    }
}
