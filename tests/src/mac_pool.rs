//! The Macs of a simulated Scaleway: one behind the address of each server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use scaleway_sim::{NewServer, Scaleway};
use serde_json::Value;

use crate::mac_host::MacHost;
use crate::programs;
use crate::sandbox::Sandbox;

/// A simulated Scaleway, and a Mac behind each of its servers. Both end with this value.
#[derive(Debug)]
pub struct MacPool {
    sandbox: Sandbox,
    scaleway: Scaleway,
    public_key: String,
    image: (String, Value),
    macs: Mutex<Vec<(String, Arc<MacHost>)>>,
}

impl MacPool {
    /// A pool without servers. Its Macs let a key in, and their tart reaches one image; `description` is its `image.json`.
    pub fn new(
        sandbox: &Sandbox,
        scaleway: Scaleway,
        public_key: &str,
        image: &str,
        description: Value,
    ) -> Self {
        let image = (image.to_owned(), description);
        let (sandbox, public_key) = (sandbox.clone(), public_key.to_owned());
        Self { sandbox, scaleway, public_key, image, macs: Mutex::new(Vec::new()) }
    }

    /// The simulated Scaleway.
    pub fn scaleway(&self) -> &Scaleway {
        &self.scaleway
    }

    /// Orders a server of this name, and returns its id; `None`, with a word about it, where Macs cannot be simulated.
    pub async fn order(&self, name: &str) -> Result<Option<String>> {
        let Some(mac) = self.boot().await? else { return Ok(None) };
        let id = self.scaleway.world().order(NewServer::named(name));
        self.attach(&id, mac).await?;
        self.scaleway.world().finish_changes();
        Ok(Some(id))
    }

    /// What Scaleway does when it installs a server anew: another Mac is there.
    pub async fn install_anew(&self, id: &str) -> Result<()> {
        self.macs().retain(|(known, _)| known != id);
        let mac = self.boot().await?.context("no simulated Mac")?;
        self.attach(id, mac).await
    }

    /// A Mac burns down: it has no power any more, and Scaleway does not know its server.
    pub fn lose(&self, id: &str) {
        self.macs().retain(|(known, _)| known != id);
        self.scaleway.world().remove(id);
    }

    /// The Mac behind a server.
    pub fn mac(&self, id: &str) -> Result<Arc<MacHost>> {
        let found = self.macs().iter().find(|(known, _)| known == id).map(|(_, mac)| Arc::clone(mac));
        found.with_context(|| format!("no Mac is behind the server {id}"))
    }

    /// All Macs, with the ids of their servers.
    pub fn all(&self) -> Vec<(String, Arc<MacHost>)> {
        self.macs().clone()
    }

    async fn boot(&self) -> Result<Option<MacHost>> {
        let builder = MacHost::new(&self.sandbox)?.pfctl(&programs::find("pfctl")?);
        let Some(mac) = builder.authorized_key(&self.public_key).start().await? else { return Ok(None) };
        mac.add_image(&self.image.0, &self.image.1)?;
        Ok(Some(mac))
    }

    async fn attach(&self, id: &str, mac: MacHost) -> Result<()> {
        self.scaleway.attach(id, mac.address()).await.map_err(anyhow::Error::msg)?;
        self.macs().push((id.to_owned(), Arc::new(mac)));
        Ok(())
    }

    fn macs(&self) -> MutexGuard<'_, Vec<(String, Arc<MacHost>)>> {
        self.macs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
