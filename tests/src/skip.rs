//! Tests that cannot be run everywhere, or not as they are meant to be.

use std::io::{self, Write};

use anyhow::Result;

/// Says that the test which calls this is not run, and why.
pub fn say(why: &str) -> Result<()> {
    print("SKIPPED", why)
}

/// Says in what the test which calls this differs from what it is meant to be.
pub fn tell(what: &str) -> Result<()> {
    print("NOTE", what)
}

fn print(word: &str, text: &str) -> Result<()> {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not by a macro: the test harness would keep that to itself, and the test would look as if it had been run.
    Ok(writeln!(io::stderr(), "{word} {name}: {text}")?)
}
