//! JSON the way Foundation's encoder prints it: `"key" : value`, two spaces, keys in no order.

use std::fmt::Write as _;

use serde_json::Value;

/// Prints a value for people and programs alike, with a key order and an escaping of `/` that differ from
/// one process to the next, so that only a JSON parser can read it.
pub(crate) fn pretty(value: &Value) -> String {
    let mut printer = Printer { text: String::new(), escape_slashes: fastrand::bool() };
    printer.value(value, 0);
    printer.text
}

struct Printer {
    text: String,
    escape_slashes: bool,
}

impl Printer {
    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Array(items) => {
                self.block(('[', ']'), items, depth, |printer, item| printer.value(item, depth + 1));
            }
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                fastrand::shuffle(&mut fields);
                self.block(('{', '}'), &fields, depth, |printer, (key, field)| {
                    printer.string(key);
                    printer.text.push_str(" : ");
                    printer.value(field, depth + 1);
                });
            }
            Value::String(text) => self.string(text),
            other => {
                // Writing to a string cannot fail.
                let _ = write!(self.text, "{other}");
            }
        }
    }

    fn block<T>(
        &mut self,
        (open, close): (char, char),
        items: &[T],
        depth: usize,
        each: impl Fn(&mut Self, &T),
    ) {
        self.text.push(open);
        self.text.push('\n');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.text.push_str(",\n");
            }
            self.indent(depth + 1);
            each(self, item);
        }
        self.text.push('\n');
        self.indent(depth);
        self.text.push(close);
    }

    fn indent(&mut self, depth: usize) {
        self.text.extend(std::iter::repeat_n("  ", depth));
    }

    fn string(&mut self, text: &str) {
        let encoded = Value::from(text).to_string();
        if self.escape_slashes {
            self.text.push_str(&encoded.replace('/', "\\/"));
        } else {
            self.text.push_str(&encoded);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn empty_array_is_two_brackets_around_an_empty_line() {
        assert_eq!(pretty(&json!([])), "[\n\n]");
    }

    #[test]
    fn one_field_per_line_with_spaces_around_the_colon() {
        assert_eq!(pretty(&json!([{ "Running": false }])), "[\n  {\n    \"Running\" : false\n  }\n]");
    }

    #[test]
    fn keys_come_in_every_order_and_slashes_both_ways_yet_the_value_is_the_same() {
        let value = json!({ "a": "x/y", "b": [1, { "c": null }], "d": 2 });
        let printed: HashSet<_> = (0..400).map(|_| pretty(&value)).collect();
        assert_eq!(printed.len(), 12, "six orders, two escapings");
        for text in printed {
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
