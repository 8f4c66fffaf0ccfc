//! The `tart-provider` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    tart_provider::run(commit::VERSION)
}
