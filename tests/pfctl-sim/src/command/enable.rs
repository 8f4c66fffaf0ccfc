//! `-e`, `-d`, `-E`, `-X`: whether pf is on, and who asked for it.

use crate::cli::Enabling;
use crate::kernel::Kernel;
use crate::mac::{now, take_reference};
use crate::output::Output;

pub(super) fn enable(enabling: &Enabling, kernel: &mut Kernel, output: &mut Output) {
    match enabling {
        Enabling::Plain if kernel.is_enabled() => output.fail("pf already enabled"),
        Enabling::Plain => {
            kernel.enabled_at = Some(now());
            output.note("pf enabled");
        }
        Enabling::TakeReference => {
            let token = take_reference(kernel, std::process::id(), "pfctl");
            output.note(format!("pf enabled\nToken : {token}"));
        }
        Enabling::ReleaseReference(_) if !kernel.is_enabled() => output.fail("pf not enabled"),
        Enabling::ReleaseReference(token) => release(token, kernel, output),
    }
}

fn release(token: &str, kernel: &mut Kernel, output: &mut Output) {
    let before = kernel.references.len();
    kernel.references.retain(|reference| reference.token.to_string() != token);
    match kernel.references.len() {
        left if left == before => output.fail("pf: token invalid"),
        0 => {
            kernel.enabled_at = None;
            output.note("pf disabled");
        }
        left => output.note(format!(
            "disable request successful. {left} more pf enable reference(s) remaining, pf still enabled."
        )),
    }
}

/// `-d`: off for all who asked for it.
pub(super) fn disable(kernel: &mut Kernel, output: &mut Output) {
    if kernel.enabled_at.take().is_none() {
        output.fail("pf not enabled");
        return;
    }
    kernel.references.clear();
    output.note("pf disabled");
}
