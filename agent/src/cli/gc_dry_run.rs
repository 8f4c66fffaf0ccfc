//! `tart-kubelet gc --dry-run`: what the collectors would delete, and why the rest stays. It locks and writes nothing, so the agent may run.

use std::collections::HashSet;

use kube::Api;

use super::GcArgs;
use super::gc_table::{Row, render};
use crate::fs::file::FileError;
use crate::gc::ages::Ages;
use crate::gc::observer::Observer;
use crate::gc::orphan::judge;
use crate::identity::{CredentialSources, Identity, IdentityError};
use crate::image::gc::{BadWatermarks, ImageGcPolicy, verdicts};
use crate::names::{BadNodeName, PodUid};
use crate::os::host::HostFacts;
use crate::state::StateDir;
use crate::tart::Tart;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DryRunError {
    /// This machine's name is not one for a Node.
    #[error("this machine's name cannot be a Node's; give one with --node-name")]
    NodeName(#[from] BadNodeName),
    /// The API server cannot be asked.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The credentials in the kubeconfig cannot be used.
    #[error("cannot use the credentials in the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// The state directory cannot be read.
    #[error("cannot use the state directory; name another one with --state-dir")]
    State(#[from] FileError),
    /// The watermarks contradict each other.
    #[error(transparent)]
    Watermarks(#[from] BadWatermarks),
    /// tart's cache cannot be read.
    #[error("cannot look into tart's cache of images")]
    Images(#[source] std::io::Error),
    /// VMs or Pods cannot be listed.
    #[error("cannot list VMs: {0}")]
    Vms(String),
}

/// A table of all that there is: keep or delete, and why.
pub(crate) async fn table(GcArgs { agent: args, output, .. }: &GcArgs) -> Result<String, DryRunError> {
    let state = StateDir::at(&args.state_dir);
    let node = args.node_name(state.node_name()?, &HostFacts::discover().await.hostname)?;
    // Without a bootstrap this only reads.
    let sources =
        CredentialSources { kubeconfig: args.kubeconfig.clone(), bootstrap: None, pki: state.pki_path() };
    let access = Identity::establish(sources, node.clone()).await?.access();
    let client = access.client(None).map_err(|error| DryRunError::Client(Box::new(error)))?;
    let at_work = at_work(&state)?;
    let tart = Tart::new(&args.tart_binary);
    let images = image_rows(&tart, &state, args.images.gc_policy()?)?;
    let min_age = args.vm_gc_min_age;
    let observer = Observer { tart, state, images: None, pods: Api::all(client), node, min_age };
    let observation = observer.look(&mut Ages::default(), at_work).await;
    if let Err(why) = observation.vms {
        return Err(DryRunError::Vms(why));
    }
    let rows = judge(&observation).into_iter().map(Row::from).chain(images);
    let rows: Vec<Row> = if args.disable_vm_gc { rows.map(Row::disabled).collect() } else { rows.collect() };
    Ok(render(&rows, *output))
}

/// The images: those that the agent pulled, and all others in tart's cache.
fn image_rows(tart: &Tart, state: &StateDir, policy: ImageGcPolicy) -> Result<Vec<Row>, DryRunError> {
    let judged = verdicts(tart, state, policy)?;
    let cached = tart.cached_images().map_err(DryRunError::Images)?;
    let others = cached.iter().filter(|image| !judged.iter().any(|(digest, _)| *digest == image.digest));
    let others: Vec<Row> = others.map(|image| Row::other_image(&image.digest)).collect();
    let known = judged.iter().map(|(digest, verdict)| Row::image(digest, *verdict));
    Ok(known.chain(others).collect())
}

/// The Pods that a running agent may be working on: all that have a record.
fn at_work(state: &StateDir) -> Result<HashSet<PodUid>, FileError> {
    if !state.is_owned()? {
        return Ok(HashSet::new());
    }
    let mut uids = HashSet::new();
    for dir in state.pods()? {
        if dir.record()?.is_some() {
            uids.insert(dir.uid().clone());
        }
    }
    Ok(uids)
}
