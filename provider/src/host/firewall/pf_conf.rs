//! `/etc/pf.conf` without what older providers put into it.

/// Older providers loaded anchors of their own from the main ruleset. All their names begin so.
const OLD_ANCHORS: &str = "tuist.";
/// Words of the comments around those lines.
const OLD_COMMENTS: &[&str] = &["tuist.", "tuist-", "tuist runners", "dev.tuist"];

/// The file without the lines of older providers: those that name one of their anchors, and the comments around them. Some versions
/// marked their lines by comments, some did not, and some wrote them twice. `None` if the file has none.
pub(super) fn without_old_lines(text: &str) -> Option<String> {
    let kept: Vec<&str> = text.lines().filter(|line| !is_old(line)).collect();
    if kept.len() == text.lines().count() {
        return None;
    }
    let mut kept = kept.join("\n");
    kept.push('\n');
    Some(kept)
}

fn is_old(line: &str) -> bool {
    let line = line.trim();
    if let Some(comment) = line.strip_prefix('#') {
        let comment = comment.to_ascii_lowercase();
        return OLD_COMMENTS.iter().any(|words| comment.contains(words));
    }
    let names_anchor = line
        .split_whitespace()
        .next()
        .is_some_and(|word| word == "load" || word == "anchor" || word.ends_with("-anchor"));
    names_anchor && line.split('"').nth(1).is_some_and(|name| name.starts_with(OLD_ANCHORS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STOCK: &str = "# com.apple anchor point\nscrub-anchor \"com.apple/*\"\nnat-anchor \"com.apple/*\"\n\
        rdr-anchor \"com.apple/*\"\ndummynet-anchor \"com.apple/*\"\nanchor \"com.apple/*\"\n\
        load anchor \"com.apple\" from \"/etc/pf.anchors/com.apple\"\n";
    const BARE: &str =
        "anchor \"tuist.runners\"\nload anchor \"tuist.runners\" from \"/etc/pf.anchors/tuist.runners\"\n";

    fn marked() -> String {
        format!("# BEGIN tuist.runners\n{BARE}# END tuist.runners\n")
    }

    #[test]
    fn a_stock_file_is_left_alone() {
        assert_eq!(without_old_lines(STOCK), None);
        assert_eq!(without_old_lines(""), None);
        let foreign = format!("{STOCK}anchor \"mine\"\nload anchor \"mine\" from \"/etc/pf.anchors/mine\"\n");
        assert_eq!(without_old_lines(&foreign), None);
    }

    #[test]
    fn blocks_of_every_old_form_are_removed() {
        let marked = marked();
        for old in [
            BARE.to_owned(),
            marked.clone(),
            format!("{BARE}{marked}"),
            format!("{marked}{marked}"),
            format!("# BEGIN tuist.runners\n{BARE}"),
        ] {
            assert_eq!(without_old_lines(&format!("{STOCK}{old}")).as_deref(), Some(STOCK), "{old}");
            assert_eq!(without_old_lines(&format!("{old}{STOCK}")).as_deref(), Some(STOCK), "{old}");
        }
    }

    proptest! {
        #[test]
        fn no_foreign_line_is_ever_removed(lines in proptest::collection::vec("[ -~]{0,40}", 0..20)) {
            let foreign: Vec<_> = lines.into_iter().filter(|line| !line.to_lowercase().contains("tuist")).collect();
            let text = foreign.join("\n") + "\n";
            prop_assert_eq!(without_old_lines(&text), None);
            let cleaned = without_old_lines(&format!("{text}{}", marked())).unwrap();
            prop_assert_eq!(cleaned, text);
        }
    }
}
