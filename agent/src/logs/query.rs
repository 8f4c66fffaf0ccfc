//! What a client asks of a log: the options of `kubectl logs`, as the API server passes them on.

use jiff::{SignedDuration, Timestamp};

use super::line::LogStream;

/// The options of a request for a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LogQuery {
    /// Whether the answer goes on until the container ends.
    pub(crate) follow: bool,
    /// Whether the log of the container's last start but one is meant.
    pub(crate) previous: bool,
    pub(super) timestamps: bool,
    pub(super) since: Option<Since>,
    /// How many lines at the end.
    pub(super) tail: Option<u64>,
    /// How many bytes at most.
    pub(super) limit: Option<u64>,
    /// One output only.
    pub(super) stream: Option<LogStream>,
}

/// The time of the first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    Time(Timestamp),
    /// Seconds before the request.
    Seconds(i64),
}

/// Options that make no sense. The API server checks them first, so only clients that ask the Node itself see this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadLogQuery {
    /// A value is not of its type.
    #[error("`{name}={value}`: {why}")]
    Value { name: &'static str, value: String, why: &'static str },
    /// Values contradict each other, or are out of range.
    #[error("{0}")]
    Invalid(&'static str),
}

impl LogQuery {
    /// Reads the query of a URL. Options that are unknown have no meaning.
    pub(crate) fn parse(query: &str) -> Result<Self, BadLogQuery> {
        let mut found = Self::default();
        let (mut time, mut seconds) = (None, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "follow" => found.follow = flag(&value),
                "previous" => found.previous = flag(&value),
                "timestamps" => found.timestamps = flag(&value),
                "sinceTime" => time = time_of(&value)?,
                "sinceSeconds" => seconds = Some(number("sinceSeconds", &value)?),
                // An older name of the kubelet's; `all` is the same as none.
                "tail" if value == "all" => found.tail = None,
                "tail" | "tailLines" => {
                    let lines = number("tailLines", &value)?;
                    let lines = u64::try_from(lines);
                    let must = "tailLines must be greater than or equal to 0";
                    found.tail = Some(lines.map_err(|_| BadLogQuery::Invalid(must))?);
                }
                "limitBytes" => {
                    let bytes = u64::try_from(number("limitBytes", &value)?).ok().filter(|bytes| *bytes > 0);
                    let must = BadLogQuery::Invalid("limitBytes must be greater than 0");
                    found.limit = Some(bytes.ok_or(must)?);
                }
                "stream" => {
                    found.stream = match &*value {
                        "" | "All" => None,
                        "Stdout" => Some(LogStream::Stdout),
                        "Stderr" => Some(LogStream::Stderr),
                        _ => return Err(BadLogQuery::Invalid("stream must be All, Stdout or Stderr")),
                    };
                }
                _ => {}
            }
        }
        found.since = match (time, seconds) {
            (Some(_), Some(_)) => {
                let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
                return Err(BadLogQuery::Invalid(why));
            }
            (_, Some(..1)) => return Err(BadLogQuery::Invalid("sinceSeconds must be greater than 0")),
            (_, Some(seconds)) => Some(Since::Seconds(seconds)),
            (time, None) => time.map(Since::Time),
        };
        if found.tail.is_some() && found.stream.is_some() {
            let why = "`tailLines` and specific `stream` are mutually exclusive for now";
            return Err(BadLogQuery::Invalid(why));
        }
        Ok(found)
    }

    /// The time of the first line, for a request at `now`.
    pub(super) fn since(&self, now: Timestamp) -> Option<Timestamp> {
        match self.since? {
            Since::Time(time) => Some(time),
            Since::Seconds(seconds) => {
                Some(now.saturating_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN))
            }
        }
    }
}

/// As Kubernetes reads flags: present is true.
fn flag(value: &str) -> bool {
    !matches!(value, "0") && !value.eq_ignore_ascii_case("false")
}

fn number(name: &'static str, value: &str) -> Result<i64, BadLogQuery> {
    value.parse().map_err(|_| BadLogQuery::Value { name, value: value.to_owned(), why: "not a number" })
}

fn time_of(value: &str) -> Result<Option<Timestamp>, BadLogQuery> {
    if value.is_empty() {
        return Ok(None);
    }
    let why = "not a time of RFC 3339";
    let bad = |_| BadLogQuery::Value { name: "sinceTime", value: value.to_owned(), why };
    value.parse().map(Some).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_option_is_read() {
        let none = LogQuery::default;
        let time: Timestamp = "2026-11-16T08:00:00Z".parse().unwrap();
        for (query, expected) in [
            ("", none()),
            ("follow=true&previous=false", LogQuery { follow: true, ..none() }),
            ("follow", LogQuery { follow: true, ..none() }),
            ("follow=0&timestamps=1", LogQuery { timestamps: true, ..none() }),
            ("previous=true", LogQuery { previous: true, ..none() }),
            ("tailLines=0", LogQuery { tail: Some(0), ..none() }),
            ("tail=5", LogQuery { tail: Some(5), ..none() }),
            ("tail=all", none()),
            ("limitBytes=1", LogQuery { limit: Some(1), ..none() }),
            ("sinceSeconds=10", LogQuery { since: Some(Since::Seconds(10)), ..none() }),
            ("sinceTime=2026-11-16T08%3A00%3A00Z", LogQuery { since: Some(Since::Time(time)), ..none() }),
            ("sinceTime=2026-11-16T09:00:00%2B01:00", LogQuery { since: Some(Since::Time(time)), ..none() }),
            ("stream=All&tailLines=1", LogQuery { tail: Some(1), ..none() }),
            ("stream=Stderr", LogQuery { stream: Some(LogStream::Stderr), ..none() }),
            ("unknown=1", none()),
        ] {
            assert_eq!(LogQuery::parse(query), Ok(expected), "{query}");
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for (query, words) in [
            ("tailLines=x", "`tailLines=x`: not a number"),
            ("tailLines=-1", "tailLines must be greater than or equal to 0"),
            ("limitBytes=0", "limitBytes must be greater than 0"),
            ("limitBytes=-9", "limitBytes must be greater than 0"),
            ("sinceSeconds=0", "sinceSeconds must be greater than 0"),
            ("sinceTime=yesterday", "`sinceTime=yesterday`: not a time of RFC 3339"),
            (
                "sinceTime=2026-11-16T08:00:00Z&sinceSeconds=1",
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            ("stream=stdout", "stream must be All, Stdout or Stderr"),
            ("stream=Stdout&tailLines=1", "`tailLines` and specific `stream` are mutually exclusive for now"),
        ] {
            assert_eq!(LogQuery::parse(query).unwrap_err().to_string(), words, "{query}");
        }
    }

    #[test]
    fn seconds_count_back_from_the_request() {
        let query = LogQuery::parse("sinceSeconds=10").unwrap();
        assert_eq!(query.since(Timestamp::from_second(100).unwrap()), Timestamp::from_second(90).ok());
        let long = LogQuery::parse(&format!("sinceSeconds={}", i64::MAX)).unwrap();
        assert_eq!(long.since(Timestamp::UNIX_EPOCH), Some(Timestamp::MIN));
    }

    proptest! {
        #[test]
        fn no_query_makes_the_parser_panic(query in "(&?(follow|tailLines|limitBytes|sinceTime|sinceSeconds|stream|tail)=?.{0,12}){0,4}") {
            if let Ok(found) = LogQuery::parse(&query) {
                let _ = found.since(Timestamp::UNIX_EPOCH);
                prop_assert!(found.limit != Some(0));
                prop_assert!(found.tail.is_none() || found.stream.is_none());
            }
        }
    }
}
