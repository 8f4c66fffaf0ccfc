//! Tests that cannot be run everywhere.

use std::io::{self, Write};

use anyhow::Result;

/// Says that the test which calls this is not run, and why.
pub fn say(why: &str) -> Result<()> {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not by a macro: the test harness would keep that to itself, and the test would look as if it had been run.
    Ok(writeln!(io::stderr(), "SKIPPED {name}: {why}")?)
}
