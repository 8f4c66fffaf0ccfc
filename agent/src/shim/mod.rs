//! The process that owns one VM: it makes the VM, runs the Pod's containers in it, and writes how it ended. It has its own session and
//! needs no API server, so that VMs run on while the agent is restarted.

mod attach;
mod boot_only;
mod container;
mod create_vm;
mod network;
mod outcome;
mod progress;
mod records;
mod run_vm;
mod share_permissions;
mod shares;
mod stop;
mod supervise;

pub(crate) use supervise::attach::{AttachError, AttachedCommand, AttachedInput, AttachedReader};
pub(crate) use supervise::launch::{LaunchError, launch};
pub(crate) use supervise::recover_exit::{ask_guest, known_outcome};
pub(crate) use supervise::stray_processes::{
    StrayProcessError, gone, kill_lock_holders, kill_stray_processes,
};

use std::fs::File;
use std::io;
use std::path::Path;

use nix::unistd::setsid;
use tracing::info;

use crate::crash_point;
use crate::fs::file::FileError;
use crate::fs::lock::Lock;
use crate::state::disk_space_request::DiskSpaceRequest;
use crate::state::{NotStarted, NotStartedReason, Outcome, ShimSpec, VmRun};
use crate::tart::Tart;
use attach::AttachServer;
use container::main::MainContainer;
use network::host_ports::HostPorts;
use outcome::messages::{host_port_taken, stopped_before_start};
use progress::ProgressWriter;
use records::not_started;
use stop::request::StopSignal;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ShimError {
    #[error(transparent)]
    State(#[from] FileError),
    #[error("cannot share the VM's lock with tart")]
    ShareLock(#[source] io::Error),
}

/// Runs the VM whose directory is `dir`, from clone to outcome. The agent hands over the shim's lock as standard input.
pub(crate) async fn run(dir: &Path, stdin: File) -> Result<(), ShimError> {
    // Leaves the agent's session, so that no signal to the agent's process group reaches the shim. It fails when a user has started
    // the shim, which then leads a group already.
    let _ = setsid();
    let (vm_run, spec) = VmRun::open(dir)?;
    let Some(_shim_lock) = vm_run.inherit_shim_lock(stdin)? else {
        info!(vm = %spec.vm, "standard input is not the lock of this VM, or the VM has had a shim");
        return Ok(());
    };
    let shim = Shim {
        tart: Tart::new(&spec.tart),
        stop: StopSignal::watch(&vm_run),
        progress: ProgressWriter::new(&vm_run),
        main: MainContainer::default(),
        attach: AttachServer::listen(&vm_run.attach_socket_path()),
        vm_run,
        spec,
    };
    shim.persist("the shim's process ID", || shim.vm_run.record_shim_pid(std::process::id())).await;
    let Some(tart_lock) = shim.vm_run.take_tart_lock()? else {
        let message = "another tart is still at work on the VM".to_owned();
        shim.end(&not_started(NotStarted::new(NotStartedReason::StartError, message))).await;
        return Ok(());
    };
    tart_lock.share_with_children().map_err(ShimError::ShareLock)?;
    crash_point::point("shim.started");
    Box::pin(shim.serve(tart_lock)).await;
    Ok(())
}

struct Shim {
    tart: Tart,
    vm_run: VmRun,
    spec: ShimSpec,
    stop: StopSignal,
    main: MainContainer,
    attach: AttachServer,
    progress: ProgressWriter,
}

impl Shim {
    /// Brings the run to its end, and records it. `tart_lock` is held by every tart that this starts.
    async fn serve(self, tart_lock: Lock) {
        self.persist("that the run has begun", || self.vm_run.mark_begun()).await;
        crash_point::point("shim.begun");
        let outcome = Box::pin(self.begin()).await.unwrap_or_else(not_started);
        self.leftover_processes_gone(tart_lock, &outcome).await;
        self.end(&outcome).await;
    }

    async fn begin(&self) -> Result<Outcome, NotStarted> {
        let ports = HostPorts::bind(&self.spec.host_ports).await.map_err(|error| host_port_taken(&error))?;
        let mut stop = self.stop.clone();
        tokio::select! {
            created = self.create_vm() => created?,
            // Dropping the call kills the tart that is at work.
            _ = stop.requested() => return Err(stopped_before_start()),
        }
        Ok(Box::pin(self.run_vm(ports)).await)
    }

    fn disk_space_request(&self) -> DiskSpaceRequest {
        DiskSpaceRequest::new(self.vm_run.clone(), self.tart.clone())
    }
}
