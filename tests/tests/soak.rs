//! A short run of the worlds of `make soak`, with a fixed seed.

// The clock that worlds move is libfaketime.
#![cfg(target_os = "linux")]

use std::process::Command;

#[test]
fn a_few_steps_in_random_worlds_break_no_invariant() {
    let output = Command::new(env!("CARGO_BIN_EXE_soak"))
        .args(["--seed", "1", "--steps", "60", "--worlds", "3"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("every invariant held"), "{said}");
}
