//! A Pod's containers, as the commands in the guest see them.

mod command;
mod environment;
mod fake_guest_agent;
mod guest;
mod hooks;
mod host_ports;
mod hostile_guest;
mod init_containers;
mod init_images;
mod mac;
mod restart;
mod security_context;
mod tart_faults;
