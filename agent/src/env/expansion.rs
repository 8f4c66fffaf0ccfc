//! `$(NAME)` in environment variables, commands and arguments.

/// Replaces each `$(NAME)` of a known variable. `$$` stands for `$`. A reference to an unknown variable stays as it is.
pub(crate) fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => expanded.push_str(&value),
                None => expanded.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded.push_str(rest);
    expanded
}

/// The value of a variable; the last one of a name counts.
pub(crate) fn lookup(variables: &[(String, String)], name: &str) -> Option<String> {
    variables.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn references_are_replaced_as_kubernetes_does_it() {
        let known = |name: &str| (name == "A").then(|| "1".to_owned());
        let table = [
            ("$(A)", "1"),
            ("a$(A)b$(A)", "a1b1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$", "$"),
            ("", ""),
        ];
        for (text, expected) in table {
            assert_eq!(expand(text, known), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_without_a_dollar_stays(text in "[^$]{0,40}") {
            prop_assert_eq!(expand(&text, |_| Some("x".into())), text);
        }

        #[test]
        fn no_text_panics(text in "[$()A ]{0,20}") {
            let _ = expand(&text, |_| Some("x".into()));
        }
    }
}
