//! Volumes, as the commands in the guest see them.

mod content;
mod empty_dir;
mod host_path;
mod many_objects;
mod sub_path;
mod token;
mod untrusted_share;

/// Removes the shell's error messages about a file system that is read-only.
fn without_errors(mut output: Vec<String>) -> Vec<String> {
    output.retain(|line| !line.contains("file system") && !line.contains("ermission"));
    output
}
