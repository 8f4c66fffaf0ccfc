//! What may follow the addresses of a rule.

use crate::rule::State;

use super::SyntaxError;
use super::cursor::Cursor;
use super::hosts::unsimulated;
use super::lexer::Token;

/// Reads the options of a filter rule; returns whether it keeps state.
pub(super) fn filter(cursor: &mut Cursor<'_>) -> Result<State, SyntaxError> {
    let mut state = State::KeepFromStart;
    while let Some(token) = cursor.next() {
        let Token::Word(word) = token else { return Err(cursor.error()) };
        match word.as_str() {
            "flags" => match cursor.word()? {
                "any" => state = State::KeepFromAny,
                "S/SA" => (),
                _ => return Err(unsimulated(cursor, "flags other than S/SA and any")),
            },
            "label" | "tag" | "icmp-type" | "icmp6-type" | "code" => {
                cursor.word()?;
            }
            "keep" | "modify" if cursor.takes("state") => (),
            "no" if cursor.takes("state") => state = State::No,
            "allow-opts" => (),
            "synproxy" | "tagged" | "rtable" | "probability" | "user" | "group" | "os" | "tos" => {
                return Err(unsimulated(cursor, word));
            }
            _ => return Err(cursor.error()),
        }
    }
    Ok(state)
}

/// Reads the options of a scrub rule.
pub(super) fn scrub(cursor: &mut Cursor<'_>) -> Result<(), SyntaxError> {
    while let Some(token) = cursor.next() {
        let Token::Word(word) = token else { return Err(cursor.error()) };
        match word.as_str() {
            "no-df" | "random-id" => (),
            "max-mss" | "min-ttl" => {
                cursor.number::<u16>()?;
            }
            "fragment" if cursor.takes("reassemble") => (),
            "reassemble" if cursor.takes("tcp") => (),
            _ => return Err(cursor.error()),
        }
    }
    Ok(())
}
