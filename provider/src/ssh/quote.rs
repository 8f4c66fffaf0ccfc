//! Words for the login shell of a Mac, which is zsh, bash or sh: sshd gives it the command as one string.

/// The command line whose words are exactly `argv`.
pub(super) fn command_line<'a>(argv: impl IntoIterator<Item = &'a str>) -> String {
    argv.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A word between single quotes, in which no shell expands anything. Every word is quoted: zsh expands `=name`, too.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_shell_reads_the_words_that_were_given(words in prop::collection::vec("[ -~\n\t]{0,12}", 1..5)) {
            let line = command_line(["printf", "%s\\0"].into_iter().chain(words.iter().map(String::as_str)));
            let output = Command::new("/bin/sh").args(["-c", &line]).output().unwrap();
            let read: Vec<String> = String::from_utf8(output.stdout).unwrap().split_terminator('\0').map(str::to_owned).collect();
            prop_assert_eq!(read, words);
        }
    }
}
