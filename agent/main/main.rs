//! The `tart-kubelet` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    tart_kubelet::run(commit::VERSION)
}
