//! `tart push`.

use crate::cli;
use crate::command::validation::at_least_one_connection;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::oci::{self, Reference, Registry, RemoteName};
use crate::output::stdout;

/// Uploads a stopped VM under one or more names.
pub(crate) fn push(home: &Home, args: &cli::Push) -> Result<()> {
    at_least_one_connection(args.concurrency)?;
    if let Some(label) = args.labels.iter().find(|label| !label.contains('=')) {
        return Err(Error::usage(format!("The value '{label}' is invalid for '--label <label>'")));
    }
    let vm = home.open_vm(&args.local_name)?;
    if vm.is_running() {
        return Err(Error::vm_is_running(&args.local_name));
    }
    let names = args.remote_names.iter().map(|name| RemoteName::parse(name)).collect::<Result<Vec<_>>>()?;
    for name in &names {
        if let Reference::Digest(_) = name.reference {
            return Err(Error::runtime(format!(
                "failed to parse remote name: cannot push to a digest: {name}"
            )));
        }
    }
    for name in &names {
        stdout::line(format!("pushing {} to {name}...", args.local_name));
        stdout::line("pushing config...");
        let pushed = Registry::new(&name.host).push(name, &vm, &args.labels)?;
        for part in ["pushing disk, this will take a while...", "100%", "pushing NVRAM..."] {
            stdout::line(part);
        }
        stdout::line(format!("pushing manifest for {}...", name.reference.value()));
        if args.populate_cache {
            oci::populate(home, name, &pushed)?;
        }
    }
    Ok(())
}
