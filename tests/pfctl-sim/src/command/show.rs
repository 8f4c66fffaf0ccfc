//! `-s`: what the kernel has.

use crate::cli::{Call, Show};
use crate::kernel::Kernel;
use crate::mac::now;
use crate::output::Output;
use crate::rule::Kind;

pub(super) fn show(what: Show, call: &Call, kernel: &Kernel, output: &mut Output) {
    let ruleset = kernel.rulesets.get(&call.anchor);
    let rules = ruleset.into_iter().flat_map(|ruleset| &ruleset.rules);
    if call.anchor.ends_with("/*") && matches!(what, Show::Rules | Show::Nat) {
        output.fail("DIOCGETRULES: Invalid argument");
        return;
    }
    match what {
        Show::Rules => rules
            .filter(|rule| matches!(rule.kind, Kind::Scrub | Kind::Filter))
            .for_each(|rule| output.print(rule.to_string())),
        Show::Nat => rules
            .filter(|rule| matches!(rule.kind, Kind::Nat | Kind::Rdr))
            .for_each(|rule| output.print(rule.to_string())),
        Show::Anchors => kernel
            .anchors_below(&call.anchor, call.is_verbose)
            .iter()
            .for_each(|anchor| output.print(format!("  {anchor}"))),
        Show::States => kernel.states.iter().for_each(|state| {
            let packet = &state.original;
            output.print(format!(
                "ALL {} {}:{} -> {}:{}",
                packet.protocol,
                packet.source,
                packet.source_port,
                packet.destination,
                packet.destination_port
            ));
        }),
        Show::Info => info(kernel, output),
        Show::Tables => tables(call, kernel, output),
        Show::References => references(kernel, output),
    }
}

fn info(kernel: &Kernel, output: &mut Output) {
    match kernel.enabled_at {
        Some(at) => output.print(format!("Status: Enabled for {}           Debug: Urgent", age(at))),
        None => output.print("Status: Disabled                              Debug: Urgent"),
    }
}

fn tables(call: &Call, kernel: &Kernel, output: &mut Output) {
    let Some(ruleset) = kernel.rulesets.get(&call.anchor) else { return };
    for (name, table) in &ruleset.tables {
        if !call.is_verbose {
            output.print(name);
            continue;
        }
        let flag = |is_set, letter| if is_set { letter } else { '-' };
        let flags: String = [
            flag(table.is_constant, 'c'),
            flag(table.is_persistent, 'p'),
            'a',
            '-',
            flag(ruleset.refers_to(name), 'r'),
            '-',
            '-',
        ]
        .into_iter()
        .collect();
        let anchor = if call.anchor.is_empty() { String::new() } else { format!("\t{}", call.anchor) };
        output.print(format!("{flags}\t{name}{anchor}"));
    }
}

fn references(kernel: &Kernel, output: &mut Output) {
    if kernel.references.is_empty() {
        output.print("No pf starter references held");
        return;
    }
    output.print("TOKENS:");
    output.print("PID      Process Name                 TOKEN                    TIMESTAMP");
    for reference in &kernel.references {
        let (pid, process, token) = (reference.pid, &reference.process, reference.token);
        let taken = age(reference.taken_at);
        output.print(format!("{pid:<8} {process:<28} {token:<24} {taken}"));
    }
}

/// How long ago, as pfctl prints it.
fn age(since: u64) -> String {
    let seconds = now().saturating_sub(since);
    let (days, rest) = (seconds / 86400, seconds % 86400);
    format!("{days} days {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}
