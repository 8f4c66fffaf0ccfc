//! The pages of the documentation, and the shell commands that they show.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// README.md, and the pages of docs/.
pub fn pages() -> Result<Vec<PathBuf>> {
    let mut pages = vec![workspace().join("README.md")];
    for entry in std::fs::read_dir(workspace().join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(pages)
}

/// What a comment before a block of commands says about it. Readers do not see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// `<!-- needs a Mac -->`: what a test lacks.
    Needs(String),
    /// `<!-- run by TEST -->`: the test that runs the block as it is.
    RunBy(String),
}

impl Marker {
    fn parse(line: &str) -> Option<Self> {
        let words = line.trim().strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        if let Some(what) = words.strip_prefix("needs ") {
            return Some(Self::Needs(what.to_owned()));
        }
        words.strip_prefix("run by ").map(|test| Self::RunBy(test.to_owned()))
    }
}

/// A block of shell commands.
#[derive(Debug, Clone)]
pub struct ShellBlock {
    /// The page, and the line at which the block begins.
    pub place: String,
    /// What is said about it.
    pub marker: Option<Marker>,
    /// The commands, without the indentation of the block.
    pub text: String,
}

impl ShellBlock {
    /// The commands, one a line, without comments.
    pub fn commands(&self) -> Vec<String> {
        let joined = self.text.replace("\\\n", " ");
        let lines = joined.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    }
}

/// The blocks of a page.
pub fn shell_blocks(page: &Path) -> Result<Vec<ShellBlock>> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let name = page.strip_prefix(workspace()).unwrap_or(page).display().to_string();
    let mut blocks = Vec::new();
    let mut marker = None;
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim() == "```sh" {
            let indent = line.len() - line.trim_start().len();
            let body = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let body: Vec<_> = body.map(|line| line.get(indent..).unwrap_or_default()).collect();
            let text = body.join("\n") + "\n";
            blocks.push(ShellBlock { place: format!("{name}:{}", number + 1), marker: marker.take(), text });
        } else if !line.trim().is_empty() {
            marker = Marker::parse(line);
        }
    }
    Ok(blocks)
}
