//! What git knows of the commit that is built. A build without git, or without a repository, is none that fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// As many digits of a commit's hash. Git's own choice grows with the repository, and the same commit would have two versions.
const DIGITS: usize = 7;

/// The commit that is checked out.
#[derive(Debug)]
pub(crate) struct Head {
    /// Its hash and the day on which it was made, `abcdef0 2026-11-18`.
    pub(crate) commit: String,
    /// The files and directories of which one changes when another commit is checked out or made. All are there: cargo takes one that is
    /// missing for changed, always.
    pub(crate) watched: Vec<PathBuf>,
}

/// The commit that is checked out in a directory. `None` if the directory is not the top of a work tree: an archive that is unpacked inside
/// another repository has nothing to do with that repository's commits.
pub(crate) fn head(workspace: &Path) -> Option<Head> {
    let top = PathBuf::from(git(workspace, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != workspace.canonicalize().ok()? {
        return None;
    }
    let said = git(workspace, &["log", "-1", "--no-show-signature", "--format=%H %cs"])?;
    let (hash, day) = said.split_once(' ')?;
    let commit = format!("{} {day}", hash.get(..DIGITS)?);
    Some(Head { commit, watched: watched(workspace) })
}

fn watched(workspace: &Path) -> Vec<PathBuf> {
    // A work tree that was added by `git worktree` has a HEAD of its own, and shares all else.
    let path = |name: &str| Some(workspace.join(git(workspace, &["rev-parse", "--git-path", name])?));
    let branch = git(workspace, &["symbolic-ref", "--quiet", "HEAD"]);
    let mut watched: Vec<PathBuf> =
        ["HEAD", "packed-refs", "reftable"].into_iter().filter_map(path).collect();
    watched.retain(|path| path.exists());
    if let Some(branch) = branch.as_deref().and_then(path) {
        // A packed branch has no file until the next commit. Then the directory changes that the file comes into.
        watched.extend(branch.ancestors().find(|path| path.exists()).map(Path::to_owned));
    }
    watched
}

/// What git prints, without the end of the line; `None` if it fails.
fn git(workspace: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // A build that a hook of another repository has started has these.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    let output = command.current_dir(workspace).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn run(directory: &Path, line: &str) {
        let mut command = Command::new("git");
        command.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]);
        command.env("GIT_COMMITTER_DATE", "2026-11-18T23:30:00+0100").env("GIT_CONFIG_GLOBAL", "/dev/null");
        let output = command.current_dir(directory).args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A repository with one commit.
    fn repository() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        run(directory.path(), "init --quiet --initial-branch=main");
        run(directory.path(), "commit --quiet --allow-empty -m 1");
        directory
    }

    /// All that cargo sees of the watched files.
    fn seen(head: &Head) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut open = head.watched.clone();
        while let Some(path) = open.pop() {
            assert!(path.exists(), "{} would be changed always", path.display());
            if path.is_dir() {
                open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                let bytes = std::fs::read(&path).unwrap();
                found.insert(path, bytes);
            }
        }
        found
    }

    /// Checks that what is watched tells a new commit.
    fn tells_a_new_commit(directory: &Path) {
        let before = head(directory).unwrap();
        let files = seen(&before);
        run(directory, "commit --quiet --allow-empty -m next");
        assert_ne!(seen(&before), files, "the commit is not seen: {:?}", before.watched);
        assert_ne!(head(directory).unwrap().commit, before.commit);
    }

    #[test]
    fn a_commit_has_seven_digits_and_its_day() {
        let repository = repository();
        let commit = head(repository.path()).unwrap().commit;
        let (hash, day) = commit.split_once(' ').unwrap();
        assert!(hash.len() == 7 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
        assert_eq!(day, "2026-11-18");
    }

    #[test]
    fn a_new_commit_changes_what_is_watched() {
        let repository = repository();
        let directory = repository.path();
        tells_a_new_commit(directory);
        run(directory, "pack-refs --all");
        tells_a_new_commit(directory);
        run(directory, "checkout --quiet -b deep/branch");
        run(directory, "pack-refs --all");
        tells_a_new_commit(directory);
        run(directory, "checkout --quiet --detach");
        tells_a_new_commit(directory);
    }

    #[test]
    fn an_added_work_tree_has_its_own_commit() {
        let repository = repository();
        let added = tempfile::tempdir().unwrap();
        let tree = added.path().join("tree");
        run(repository.path(), &format!("worktree add --quiet -b other {}", tree.display()));
        tells_a_new_commit(&tree);
        assert_ne!(head(&tree).unwrap().commit, head(repository.path()).unwrap().commit);
    }

    #[test]
    fn without_a_repository_there_is_no_commit() {
        let directory = tempfile::tempdir().unwrap();
        assert!(head(directory.path()).is_none());
        assert!(head(&directory.path().join("missing")).is_none());
        run(directory.path(), "init --quiet");
        assert!(head(directory.path()).is_none(), "nothing is committed yet");
        // An archive that was unpacked inside a repository.
        let repository = repository();
        let unpacked = repository.path().join("unpacked");
        std::fs::create_dir(&unpacked).unwrap();
        assert!(head(&unpacked).is_none());
    }
}
