//! The packet filter of a simulated Mac: what `pfctl` loads, and what becomes of a packet.
//!
//! A test has three doors. [`run`] is the program `pfctl`. [`Mac`] changes what is around the filter: interfaces, Internet Sharing, a
//! reboot. [`Kernel`] judges packets by the rules that are loaded.

mod address;
mod cli;
mod command;
mod evaluate;
mod fault;
mod kernel;
mod load;
mod mac;
mod output;
mod rule;
mod rule_text;
mod syntax;

pub use address::{Family, Net};
pub use command::run;
pub use evaluate::{Packet, Verdict};
pub use fault::{Fault, FaultError};
pub use kernel::{Interface, Kernel, Table};
pub use mac::{Delivery, Mac};
pub use output::Output;
pub use rule::{Direction, Protocol};
