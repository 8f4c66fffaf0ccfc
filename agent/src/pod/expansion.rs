//! `$(NAME)` in environment variables, commands and arguments.

/// Replaces each `$(NAME)` whose variable is known; `$$` stands for `$`, and what is not known stays as it is.
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

/// Variables in the Pod's order, each able to use the ones before it.
pub(super) fn expand_all(variables: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut known: Vec<(String, String)> = Vec::new();
    for (name, value) in variables {
        let value = expand(&value, |name| lookup(&known, name));
        known.push((name, value));
    }
    known
}

/// The value of a variable; the last one of a name counts.
pub(super) fn lookup(variables: &[(String, String)], name: &str) -> Option<String> {
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

    #[test]
    fn a_variable_can_use_the_ones_before_it() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expanded =
            expand_all([pair("A", "1"), pair("B", "$(A)$(C)"), pair("C", "3"), pair("A", "$(A)2")]);
        assert_eq!(expanded, [pair("A", "1"), pair("B", "1$(C)"), pair("C", "3"), pair("A", "12")]);
        assert_eq!(lookup(&expanded, "A").as_deref(), Some("12"));
    }

    proptest! {
        #[test]
        fn text_without_a_dollar_stays(text in "[^$]{0,40}") {
            prop_assert_eq!(expand(&text, |_| Some("x".into())), text);
        }

        #[test]
        fn any_text_is_taken(text in "[$()A ]{0,20}") {
            let _ = expand(&text, |_| Some("x".into()));
        }
    }
}
