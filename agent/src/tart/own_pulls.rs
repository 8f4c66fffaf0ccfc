//! The running `tart pull`s that this agent or an earlier one has started.

use std::path::Path;

use super::{call_record, stale_calls};
use crate::names::full_name;
use crate::os::process_table::{self, RunningProcess, TableError};

/// The images that the agent's own tarts pull, by full name. No tart of the agent brings any other image any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnPulls(Vec<String>);

impl OwnPulls {
    /// Reads the process table for the pulls in one home of tart.
    pub(super) fn read(home: &Path) -> Result<Self, TableError> {
        Ok(Self::among(&call_record::complete(process_table::others()?, home), home))
    }

    pub(crate) fn has(&self, image: &str) -> bool {
        self.0.contains(&full_name(image))
    }

    /// Only tarts with the agent's mark count: a user may pull the same images.
    pub(super) fn among(running: &[RunningProcess], home: &Path) -> Self {
        let ours = running.iter().filter(|call| call.variable(stale_calls::HOME) == home.to_str());
        let pulled = ours.filter_map(|call| call.words().skip_while(|word| *word != "pull").nth(1));
        Self(pulled.map(full_name).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_without_the_agents_mark_is_not_its_own() {
        let mark = |home: &str| format!("{}={home}", stale_calls::HOME);
        let running = [
            RunningProcess::example(2, 1, &["tart", "pull", "r.test/a"], &[&mark("/home")]),
            RunningProcess::example(3, 1, &["sh", "/bin/tart", "pull", "r.test/b:1"], &[&mark("/home")]),
            RunningProcess::example(4, 1, &["tart", "pull", "r.test/theirs:1"], &[]),
            RunningProcess::example(5, 1, &["tart", "pull", "r.test/elsewhere:1"], &[&mark("/other")]),
            RunningProcess::example(6, 1, &["tart", "clone", "r.test/cloned:1", "vm"], &[&mark("/home")]),
            RunningProcess::example(7, 1, &["tart", "pull"], &[&mark("/home")]),
        ];
        let own = OwnPulls::among(&running, Path::new("/home"));
        assert!(own.has("r.test/a") && own.has("r.test/a:latest") && own.has("r.test/b:1"));
        assert_eq!(own.0.len(), 2, "{own:?}");
    }
}
