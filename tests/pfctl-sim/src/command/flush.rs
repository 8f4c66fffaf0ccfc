//! `-F`: rules, tables and states go.

use crate::cli::Flush;
use crate::kernel::Kernel;
use crate::output::Output;
use crate::rule::Kind;

pub(super) fn flush(what: Flush, anchor: &str, kernel: &mut Kernel, output: &mut Output) {
    let is_all = what == Flush::All;
    if is_all || what == Flush::Rules {
        kernel.ruleset(anchor).rules.retain(|rule| !matches!(rule.kind, Kind::Filter | Kind::Scrub));
        output.note("rules cleared");
    }
    if is_all || what == Flush::Nat {
        kernel.ruleset(anchor).rules.retain(|rule| !matches!(rule.kind, Kind::Nat | Kind::Rdr));
        output.note("nat cleared");
    }
    if is_all {
        kernel.ruleset(anchor).rules.retain(|rule| rule.kind != Kind::Dummynet);
        output.note("dummynet cleared");
    }
    if is_all || what == Flush::Tables {
        let tables = &mut kernel.ruleset(anchor).tables;
        let before = tables.len();
        // A persistent table stays: only `-T kill` destroys it.
        tables.retain(|_, table| table.is_persistent);
        let deleted = before - tables.len();
        output.note(format!("{deleted} tables deleted."));
    }
    if what == Flush::States || is_all && anchor.is_empty() {
        let cleared = std::mem::take(&mut kernel.states).len();
        output.note(format!("{cleared} states cleared"));
    }
    if is_all && anchor.is_empty() {
        output.note("source tracking entries cleared\npf: statistics cleared\npf: interface flags reset");
    }
    kernel.forget_empty();
}
