//! What older providers have left on a Mac: a job that loads the main ruleset anew, lines in `/etc/pf.conf`, an anchor with rules, and
//! persistent tables, in the anchor or in the main ruleset.
//!
//! [`decide`] says what goes, and in which order: first the job, which would bring the rest back; then the rules, because a table that a
//! rule names cannot be destroyed.

use std::collections::BTreeSet;
use std::fmt;

use launchd::Label;

use super::pf_conf;
use super::pfctl::Scope;

/// The anchor of older providers.
pub(super) const OLD_ANCHOR: &str = "tuist.runners";
/// The file of that anchor's rules.
pub(super) const OLD_RULES_FILE: &str = "/etc/pf.anchors/tuist.runners";
/// The job of older providers that runs `pfctl -f /etc/pf.conf -E`.
const OLD_LABEL: &str = "dev.tuist.pfctl-runners";
/// The property list of that job.
pub(super) const OLD_PLIST: &str = "/Library/LaunchDaemons/dev.tuist.pfctl-runners.plist";
/// Tables that older providers may have left in the main ruleset, beside those that their file names.
const OLD_TABLES: &[&str] = &["vm_sources", "vm_blocked", "blocked_dst", "tuist_runners"];

/// The label of that job.
pub(super) fn old_label() -> Label {
    #[expect(clippy::expect_used, reason = "the constant is a label, and a test says so")]
    OLD_LABEL.parse().expect("a label")
}

/// What is on the Mac.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) is_job_there: bool,
    pub(super) pf_conf: Option<String>,
    pub(super) old_rules_file: Option<String>,
    pub(super) has_old_rules: bool,
    pub(super) anchor_tables: Vec<String>,
    pub(super) main_tables: Vec<String>,
    /// The rules and translations of the main ruleset.
    pub(super) main_rules: Vec<String>,
}

/// One thing that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    RetireJob,
    WritePfConf(String),
    FlushOldRules,
    KillTable(Scope, String),
    RemoveOldRulesFile,
    /// The main ruleset is not loaded, and no VM needs what Internet Sharing would have added to it.
    LoadMain,
}

/// What an older provider has left and the provider has removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// A launchd job.
    Job,
    /// Lines in `/etc/pf.conf`.
    PfConf,
    /// Rules in pf.
    Rules,
    /// Persistent tables in pf.
    Table,
    /// A file of rules.
    RulesFile,
    /// The main ruleset, which pf had refused at boot.
    MainRuleset,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "the job dev.tuist.pfctl-runners",
            Self::PfConf => "lines in /etc/pf.conf",
            Self::Rules => "rules in the anchor tuist.runners",
            Self::Table => "a persistent table of pf",
            Self::RulesFile => "/etc/pf.anchors/tuist.runners",
            Self::MainRuleset => "a main ruleset that was not loaded at boot",
        })
    }
}

impl Act {
    pub(super) fn leftover(&self) -> Leftover {
        match self {
            Self::RetireJob => Leftover::Job,
            Self::WritePfConf(_) => Leftover::PfConf,
            Self::FlushOldRules => Leftover::Rules,
            Self::KillTable(..) => Leftover::Table,
            Self::RemoveOldRulesFile => Leftover::RulesFile,
            Self::LoadMain => Leftover::MainRuleset,
        }
    }
}

/// What has to go, in this order.
pub(super) fn decide(observed: &Observed) -> Vec<Act> {
    let mut acts = Vec::new();
    if observed.is_job_there {
        acts.push(Act::RetireJob);
    }
    if let Some(text) = observed.pf_conf.as_deref().and_then(pf_conf::without_old_lines) {
        acts.push(Act::WritePfConf(text));
    }
    if observed.has_old_rules {
        acts.push(Act::FlushOldRules);
    }
    let old_tables = old_tables(observed);
    for table in &observed.anchor_tables {
        acts.push(Act::KillTable(Scope::Anchor(OLD_ANCHOR.into()), table.clone()));
    }
    for table in observed.main_tables.iter().filter(|table| old_tables.contains(table.as_str())) {
        acts.push(Act::KillTable(Scope::Main, table.clone()));
    }
    if observed.old_rules_file.is_some() {
        acts.push(Act::RemoveOldRulesFile);
    }
    if !is_evaluated(&observed.main_rules) && !is_sharing(&observed.main_rules) {
        acts.push(Act::LoadMain);
    }
    acts
}

/// Whether the main ruleset evaluates the anchors below `com.apple/`.
pub(super) fn is_evaluated(main_rules: &[String]) -> bool {
    main_rules.iter().any(|rule| rule.starts_with("anchor \"com.apple/*\""))
}

/// Whether Internet Sharing has put its anchors into the main ruleset: VMs run.
fn is_sharing(main_rules: &[String]) -> bool {
    main_rules.iter().any(|rule| rule.contains("\"com.apple.internet-sharing"))
}

/// The names of all tables that older providers may have made.
fn old_tables(observed: &Observed) -> BTreeSet<&str> {
    let in_file = observed.old_rules_file.iter().flat_map(|text| text.lines()).filter_map(|line| {
        line.trim().strip_prefix("table")?.trim_start().strip_prefix('<')?.split('>').next()
    });
    let in_anchor = observed.anchor_tables.iter().map(String::as_str);
    OLD_TABLES.iter().copied().chain(in_file).chain(in_anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock() -> Observed {
        Observed {
            pf_conf: Some("anchor \"com.apple/*\"\n".into()),
            main_rules: vec!["anchor \"com.apple/*\" all".into()],
            ..Observed::default()
        }
    }

    #[test]
    fn the_old_job_has_a_label() {
        assert_eq!(old_label().as_str(), OLD_LABEL);
    }

    #[test]
    fn nothing_is_done_on_a_mac_that_had_no_older_provider() {
        assert_eq!(decide(&stock()), []);
        let foreign = Observed { main_tables: vec!["sshguard".into()], ..stock() };
        assert_eq!(decide(&foreign), [], "a table of another program stays");
    }

    #[test]
    fn rules_go_before_the_tables_that_they_name_and_the_job_goes_first() {
        let observed = Observed {
            is_job_there: true,
            has_old_rules: true,
            old_rules_file: Some("table <vm> persist\n".into()),
            anchor_tables: vec!["vm".into()],
            main_tables: vec!["vm".into(), "foreign".into(), "vm_sources".into()],
            ..stock()
        };
        let anchor = Scope::Anchor(OLD_ANCHOR.into());
        assert_eq!(
            decide(&observed),
            [
                Act::RetireJob,
                Act::FlushOldRules,
                Act::KillTable(anchor, "vm".into()),
                Act::KillTable(Scope::Main, "vm".into()),
                Act::KillTable(Scope::Main, "vm_sources".into()),
                Act::RemoveOldRulesFile,
            ]
        );
    }

    #[test]
    fn the_main_ruleset_is_loaded_only_if_it_is_missing_and_no_vm_needs_it() {
        let refused = Observed { main_rules: Vec::new(), ..stock() };
        assert_eq!(decide(&refused), [Act::LoadMain]);
        let sharing = "nat-anchor \"com.apple.internet-sharing\" all".to_owned();
        assert_eq!(decide(&Observed { main_rules: vec![sharing], ..stock() }), []);
    }
}
