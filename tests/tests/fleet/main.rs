//! Macs over SSH, end to end: the shipped `tart-provider`, a real sshd, a simulated Mac, and a real control plane that the agent joins.

mod apply;
mod builder;
mod failure;
mod host_key;
mod node_exporter;
mod prepare;
mod roll;
mod rollout;
mod running_vm;
mod scene;
