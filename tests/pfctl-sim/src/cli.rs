//! The arguments of `pfctl`.

/// What a call asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) anchor: String,
    pub(crate) is_disabling: bool,
    pub(crate) enabling: Option<Enabling>,
    pub(crate) file: Option<String>,
    pub(crate) flush: Option<Flush>,
    pub(crate) killed_host: Option<String>,
    pub(crate) is_dry: bool,
    pub(crate) show: Option<Show>,
    pub(crate) table: Option<String>,
    pub(crate) table_command: Option<TableCommand>,
    pub(crate) is_verbose: bool,
    /// What follows the options: the addresses of `-T`.
    pub(crate) operands: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Enabling {
    /// `-e`.
    Plain,
    /// `-E`.
    TakeReference,
    /// `-X`.
    ReleaseReference(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    Nat,
    Rules,
    Anchors,
    States,
    Info,
    Tables,
    References,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    Nat,
    Rules,
    States,
    Tables,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableCommand {
    Kill,
    Flush,
    Add,
    Delete,
    Replace,
    Show,
    Test,
}

/// pfctl looks a word up by its beginning; the first that fits is taken.
const SHOW: &[(&str, Option<Show>)] = &[
    ("nat", Some(Show::Nat)),
    ("queue", None),
    ("rules", Some(Show::Rules)),
    ("Anchors", Some(Show::Anchors)),
    ("Sources", None),
    ("states", Some(Show::States)),
    ("info", Some(Show::Info)),
    ("Interfaces", None),
    ("labels", None),
    ("timeouts", None),
    ("memory", None),
    ("Tables", Some(Show::Tables)),
    ("osfp", None),
    ("Running", None),
    ("References", Some(Show::References)),
    ("all", None),
];

const FLUSH: &[(&str, Option<Flush>)] = &[
    ("nat", Some(Flush::Nat)),
    ("queue", None),
    ("rules", Some(Flush::Rules)),
    ("Sources", None),
    ("states", Some(Flush::States)),
    ("info", None),
    ("Tables", Some(Flush::Tables)),
    ("osfp", None),
    ("all", Some(Flush::All)),
];

const TABLE: &[(&str, Option<TableCommand>)] = &[
    ("kill", Some(TableCommand::Kill)),
    ("flush", Some(TableCommand::Flush)),
    ("add", Some(TableCommand::Add)),
    ("delete", Some(TableCommand::Delete)),
    ("load", None),
    ("replace", Some(TableCommand::Replace)),
    ("show", Some(TableCommand::Show)),
    ("test", Some(TableCommand::Test)),
    ("zero", None),
    ("expire", None),
];

/// Why a call is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UsageError {
    /// pfctl prints its usage.
    Usage,
    /// pfctl knows it, and the simulator does not.
    Unsimulated(String),
}

/// Reads arguments as getopt does: `-sr`, `-s r` and `-vsr` are the same but for `-v`.
pub(crate) fn parse(arguments: &[String]) -> Result<Call, UsageError> {
    let mut call = Call::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(letters) = argument.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            call.operands.push(argument.clone());
            call.operands.extend(rest.cloned());
            break;
        };
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            let mut value = || {
                let attached = letters.as_str().to_owned();
                letters = "".chars();
                if attached.is_empty() { rest.next().cloned().ok_or(UsageError::Usage) } else { Ok(attached) }
            };
            match letter {
                'a' => value()?.trim_matches('/').clone_into(&mut call.anchor),
                'd' => call.is_disabling = true,
                'e' => call.enabling = Some(Enabling::Plain),
                'E' => call.enabling = Some(Enabling::TakeReference),
                'X' => call.enabling = Some(Enabling::ReleaseReference(value()?)),
                'f' => call.file = Some(value()?),
                'F' => call.flush = Some(look_up(&value()?, FLUSH, 'F')?),
                'k' => call.killed_host = Some(value()?),
                'n' => call.is_dry = true,
                'q' => (),
                's' => call.show = Some(look_up(&value()?, SHOW, 's')?),
                't' => call.table = Some(value()?),
                'T' => call.table_command = Some(look_up(&value()?, TABLE, 'T')?),
                'v' => call.is_verbose = true,
                'A' | 'D' | 'g' | 'i' | 'K' | 'm' | 'N' | 'O' | 'o' | 'p' | 'r' | 'R' | 'x' | 'z' => {
                    return Err(UsageError::Unsimulated(format!("-{letter}")));
                }
                _ => return Err(UsageError::Usage),
            }
        }
    }
    let has_table = call.table.is_some() == call.table_command.is_some();
    if arguments.is_empty() || !has_table { Err(UsageError::Usage) } else { Ok(call) }
}

fn look_up<T: Copy>(word: &str, known: &[(&str, Option<T>)], option: char) -> Result<T, UsageError> {
    let (_, found) = known.iter().find(|(name, _)| name.starts_with(word)).ok_or(UsageError::Usage)?;
    found.ok_or_else(|| UsageError::Unsimulated(format!("-{option} {word}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Call, UsageError> {
        parse(&text.split_whitespace().map(Into::into).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read_as_getopt_reads_them() {
        assert_eq!(parsed("-sr").unwrap(), parsed("-s rules").unwrap());
        assert_eq!(parsed("-vsA").unwrap(), parsed("-v -s Anchors").unwrap());
        let call = parsed("-a com.apple/x -t vm -T add 10/8 11/8").unwrap();
        assert_eq!((call.anchor.as_str(), call.operands.len()), ("com.apple/x", 2));
        assert_eq!(parsed("-f /etc/pf.conf -E").unwrap().enabling, Some(Enabling::TakeReference));
    }

    #[test]
    fn what_pfctl_does_not_know_is_refused() {
        for text in ["", "-y", "-s x", "-t vm", "-T show", "-a"] {
            assert_eq!(parsed(text), Err(UsageError::Usage), "{text}");
        }
        assert_eq!(parsed("-s memory"), Err(UsageError::Unsimulated("-s memory".into())));
    }
}
