//! The program `pfctl` of a simulated Mac.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let output = pfctl_sim::run(&pfctl_sim::Mac::from_env(), &arguments);
    print!("{}", output.stdout);
    eprint!("{}", output.stderr);
    ExitCode::from(output.code)
}
