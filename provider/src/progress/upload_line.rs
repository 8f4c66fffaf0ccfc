//! How far the copy of a file has come, in one line. Pure functions: equal texts need not be printed twice.

use crate::ssh::Upload;

/// How wide the bar is.
const WIDTH: u64 = 24;
/// Words that are wider would make a second line of it in a narrow terminal.
const NAME: usize = 20;

/// A bar, for a terminal.
pub(super) fn bar(upload: Upload<'_>) -> String {
    let filled = part(upload, WIDTH);
    let bar: String = (0..WIDTH).map(|place| if place < filled { '#' } else { '.' }).collect();
    let name: String = upload.name.chars().take(NAME).collect();
    format!("  copying  {name} [{bar}] {}", so_much(upload.sent, upload.size))
}

/// A line for each quarter; empty before the first one is done.
pub(super) fn quarter(upload: Upload<'_>) -> String {
    let quarters = part(upload, 4);
    if quarters == 0 {
        return String::new();
    }
    let sent = upload.size * quarters / 4;
    format!("  copying  {}: {}", upload.name, so_much(sent, upload.size))
}

/// How many of so many parts are done. A file without bytes is done at once.
fn part(upload: Upload<'_>, parts: u64) -> u64 {
    let sent = upload.sent.min(upload.size);
    (sent * parts).checked_div(upload.size).unwrap_or(parts)
}

/// Bytes as people say them: in the unit that fits the file.
fn so_much(sent: u64, size: u64) -> String {
    let (unit, word) = if size < 1_000_000 { (1_000, "kB") } else { (1_000_000, "MB") };
    let number = |bytes: u64| format!("{}.{}", bytes / unit, bytes % unit * 10 / unit);
    format!("{} of {} {word}", number(sent.min(size)), number(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(sent: u64) -> Upload<'static> {
        Upload { name: "tart-kubelet", sent, size: 47_123_456 }
    }

    #[test]
    fn a_bar_fills_up() {
        assert_eq!(
            bar(upload(23_600_000)),
            "  copying  tart-kubelet [############............] 23.6 of 47.1 MB"
        );
        assert_eq!(bar(upload(0)), "  copying  tart-kubelet [........................] 0.0 of 47.1 MB");
        let full = bar(upload(47_123_456));
        assert_eq!(full, "  copying  tart-kubelet [########################] 47.1 of 47.1 MB");
        assert!(full.len() < 80);
        let long = "a".repeat(100);
        assert!(bar(Upload { name: &long, sent: 1, size: 9_999_900_000 }).len() < 80);
    }

    #[test]
    fn elsewhere_each_quarter_has_a_line() {
        let pieces = (0..=47_123_456).step_by(16 << 10).chain([47_123_456]);
        let mut lines: Vec<String> = pieces.map(|sent| quarter(upload(sent))).collect();
        lines.dedup();
        assert_eq!(
            lines,
            [
                "",
                "  copying  tart-kubelet: 11.7 of 47.1 MB",
                "  copying  tart-kubelet: 23.5 of 47.1 MB",
                "  copying  tart-kubelet: 35.3 of 47.1 MB",
                "  copying  tart-kubelet: 47.1 of 47.1 MB",
            ]
        );
    }

    #[test]
    fn a_small_file_has_a_small_unit_and_an_empty_one_is_done() {
        let empty = Upload { name: "a", sent: 0, size: 0 };
        assert_eq!(quarter(empty), "  copying  a: 0.0 of 0.0 kB");
        let script = Upload { name: "a", sent: 1_234, size: 1_234 };
        assert_eq!(quarter(script), "  copying  a: 1.2 of 1.2 kB");
    }
}
