//! The provider on a real control plane with the real Cluster API core, a simulated Scaleway and simulated Macs behind real sshds.

mod builder;
mod drain;
mod fleet;
mod leader;
mod mac_list;
mod machine;
mod reclaim;
mod scene;
