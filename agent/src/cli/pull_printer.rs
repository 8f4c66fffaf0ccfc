//! What `tart-kubelet images pull` prints: a bar that moves on a terminal, lines elsewhere, and objects for a program.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::install::doctor::Format;

/// To the begin of the line, and delete what is there.
const ERASE_LINE: &str = "\r\x1b[K";
/// How wide the bar is.
const WIDTH: u8 = 24;
/// A longer name of an image would make a second line of it in a narrow terminal.
const NAME: usize = 44;

/// What has become of the pull of an image.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub(crate) enum PullEvent<'a> {
    /// It has begun.
    Begun {
        /// The image's name.
        image: &'a str,
    },
    /// A part of the image is here.
    Arrived {
        /// The image's name.
        image: &'a str,
        /// How much of it is here.
        percent: u8,
    },
    /// The image is here.
    Pulled {
        /// The image's name.
        image: &'a str,
        /// What the name stands for now.
        digest: &'a str,
    },
    /// The image could not be pulled.
    Failed {
        /// The image's name.
        image: &'a str,
        /// Why.
        error: &'a str,
    },
}

/// Prints events. A terminal or pipe that is gone ends no pull: a tart would be left behind.
#[derive(Debug)]
pub(crate) struct PullPrinter {
    format: Format,
    /// Whether a person looks on: the last line shows what goes on, and is drawn over by what comes next.
    has_live_line: bool,
}

impl PullPrinter {
    /// A printer to standard output, and of failures to standard error.
    pub(crate) fn new(format: Format) -> Self {
        Self { format, has_live_line: format == Format::Text && io::stdout().is_terminal() }
    }

    pub(crate) fn print(&self, event: &PullEvent<'_>) {
        let mut out = io::stdout().lock();
        if self.format == Format::Json {
            let _ = writeln!(out, "{}", serde_json::to_string(event).unwrap_or_default());
            return;
        }
        if self.has_live_line {
            // Before standard error has its line.
            let _ = write!(out, "{ERASE_LINE}").and_then(|()| out.flush());
        }
        let _ = match event {
            PullEvent::Begun { image } if self.has_live_line => write!(out, "{}", bar(image, 0)),
            PullEvent::Arrived { image, percent } if self.has_live_line => {
                write!(out, "{}", bar(image, *percent))
            }
            PullEvent::Failed { .. } => writeln!(io::stderr(), "tart-kubelet: {}", line(event)),
            _ => writeln!(out, "{}", line(event)),
        };
        let _ = out.flush();
    }
}

fn line(event: &PullEvent<'_>) -> String {
    match event {
        PullEvent::Begun { image } => format!("pulling {image}"),
        PullEvent::Arrived { image, percent } => format!("{image}: {percent} % are here"),
        PullEvent::Pulled { image, digest } => format!("{image} is {digest}"),
        PullEvent::Failed { error, .. } => (*error).to_owned(),
    }
}

/// How much of an image is here, in one line.
fn bar(image: &str, percent: u8) -> String {
    let percent = percent.min(100);
    let filled = u16::from(percent) * u16::from(WIDTH) / 100;
    let bar: String = (0..u16::from(WIDTH)).map(|place| if place < filled { '#' } else { '.' }).collect();
    // The end of a name, with its tag, tells images apart.
    let letters: Vec<char> = image.chars().collect();
    let name = match letters.len().checked_sub(NAME) {
        None | Some(0) => image.to_owned(),
        Some(over) => std::iter::once('…').chain(letters[over + 1..].iter().copied()).collect(),
    };
    format!("{name} [{bar}] {percent:>3} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_up_within_a_narrow_terminal() {
        assert_eq!(bar("r.test/macos:1", 0), "r.test/macos:1 [........................]   0 %");
        assert_eq!(bar("r.test/macos:1", 50), "r.test/macos:1 [############............]  50 %");
        assert_eq!(bar("r.test/macos:1", 255), "r.test/macos:1 [########################] 100 %");
        let long = bar(&format!("registry.example.com/{}:latest", "a".repeat(100)), 99);
        assert!(
            long.starts_with("…aaa") && long.contains("a:latest [") && long.chars().count() < 80,
            "{long}"
        );
    }

    #[test]
    fn a_program_gets_an_object_for_each_event() {
        let image = "r.test/macos:1";
        let objects = [
            (PullEvent::Begun { image }, r#"{"event":"begun","image":"r.test/macos:1"}"#),
            (
                PullEvent::Arrived { image, percent: 7 },
                r#"{"event":"arrived","image":"r.test/macos:1","percent":7}"#,
            ),
            (
                PullEvent::Pulled { image, digest: "d" },
                r#"{"event":"pulled","image":"r.test/macos:1","digest":"d"}"#,
            ),
            (
                PullEvent::Failed { image, error: "no\nway" },
                r#"{"event":"failed","image":"r.test/macos:1","error":"no\nway"}"#,
            ),
        ];
        for (event, object) in objects {
            assert_eq!(serde_json::to_string(&event).unwrap(), object);
        }
    }
}
