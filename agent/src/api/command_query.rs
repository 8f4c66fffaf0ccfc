//! The query of a request for the streams of a command.

use http::Uri;

use super::stream::remote_command::Wanted;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandQuery {
    pub(super) wanted: Wanted,
    pub(super) command: Vec<String>,
}

impl CommandQuery {
    /// An error in the words of the kubelet.
    pub(super) fn parse(uri: &Uri) -> Result<Self, &'static str> {
        let mut query = Self { wanted: Wanted::default(), command: Vec::new() };
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let is_set = matches!(&*value, "1" | "true");
            match &*name {
                "input" => query.wanted.stdin = is_set,
                "output" => query.wanted.stdout = is_set,
                "error" => query.wanted.stderr = is_set,
                "tty" => query.wanted.tty = is_set,
                "command" => query.command.push(value.into_owned()),
                _ => {}
            }
        }
        let wanted = &mut query.wanted;
        // A terminal has one output.
        wanted.stderr &= !wanted.tty;
        if wanted.stdin || wanted.stdout || wanted.stderr {
            Ok(query)
        } else {
            Err("you must specify at least 1 of stdin, stdout, stderr")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(query: &str) -> Result<CommandQuery, &'static str> {
        CommandQuery::parse(&format!("/exec/n/p/c?{query}").parse().unwrap())
    }

    #[test]
    fn a_query_has_the_streams_and_the_words_of_the_command() {
        let query = parse("command=sh&command=-c&command=echo+%22a%26b%22&input=1&output=1&error=1").unwrap();
        assert_eq!(query.command, ["sh", "-c", "echo \"a&b\""]);
        assert_eq!(query.wanted, Wanted { stdin: true, stdout: true, stderr: true, tty: false });
        let tty = parse("output=1&error=1&tty=1").unwrap().wanted;
        assert_eq!(tty, Wanted { stdin: false, stdout: true, stderr: false, tty: true });
        for none in ["", "command=ls", "tty=1&error=1", "output=0"] {
            assert!(parse(none).is_err(), "{none}");
        }
    }

    proptest! {
        #[test]
        fn no_query_makes_the_parser_panic(query in "[!-~]{0,60}") {
            if let Ok(uri) = format!("/exec?{query}").parse() {
                let _ = CommandQuery::parse(&uri);
            }
        }
    }
}
