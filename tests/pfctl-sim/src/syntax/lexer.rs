//! Words, marks and macros.

use std::collections::BTreeMap;

use super::SyntaxError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A word without quotes.
    Word(String),
    /// What stands in quotes.
    Text(String),
    /// `$name`.
    Macro(String),
    /// One of `{ } ( ) , ! < > =`.
    Mark(char),
    /// `->`.
    Arrow,
}

/// A token and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spanned {
    pub(super) token: Token,
    pub(super) line: usize,
}

/// The token, or the end of a line.
type Lexed = (usize, Option<Token>);

/// Cuts a text into tokens; `None` stands for the end of a line.
pub(super) fn tokens(text: &str) -> Result<Vec<Lexed>, SyntaxError> {
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    let mut line = 1;
    while let Some(next) = chars.next() {
        let token = match next {
            '\n' => {
                found.push((line, None));
                line += 1;
                continue;
            }
            '\\' if chars.peek() == Some(&'\n') => {
                chars.next();
                line += 1;
                continue;
            }
            '#' => {
                while chars.next_if(|&c| c != '\n').is_some() {}
                continue;
            }
            c if c.is_whitespace() => continue,
            '"' => {
                let mut quoted = String::new();
                loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('\n') | None => return Err(SyntaxError::plain(line)),
                        Some(c) => quoted.push(c),
                    }
                }
                Token::Text(quoted)
            }
            '$' => Token::Macro(word(String::new(), &mut chars, |c| c.is_ascii_alphanumeric() || c == '_')),
            '-' if chars.next_if_eq(&'>').is_some() => Token::Arrow,
            '{' | '}' | '(' | ')' | ',' | '!' | '<' | '>' | '=' => Token::Mark(next),
            c if is_word(c) => Token::Word(word(c.to_string(), &mut chars, is_word)),
            _ => return Err(SyntaxError::plain(line)),
        };
        found.push((line, Some(token)));
    }
    Ok(found)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.:/*%@?".contains(c)
}

fn word(
    mut begun: String,
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    belongs: impl Fn(char) -> bool,
) -> String {
    while let Some(c) = chars.next_if(|&c| belongs(c)) {
        begun.push(c);
    }
    begun
}

/// Splits tokens into statements: a line each, or several while a brace is open.
pub(super) fn statements(tokens: Vec<Lexed>) -> Vec<Vec<Spanned>> {
    let mut found = vec![Vec::new()];
    let mut depth = 0_usize;
    for (line, token) in tokens {
        match token {
            None if depth == 0 => found.push(Vec::new()),
            None => (),
            Some(token) => {
                match token {
                    Token::Mark('{') => depth += 1,
                    Token::Mark('}') => depth = depth.saturating_sub(1),
                    _ => (),
                }
                if let Some(statement) = found.last_mut() {
                    statement.push(Spanned { token, line });
                }
            }
        }
    }
    found.retain(|statement| !statement.is_empty());
    found
}

/// The value of a macro.
pub(super) fn look_up<'a>(
    name: &str,
    line: usize,
    macros: &'a BTreeMap<String, String>,
) -> Result<&'a str, SyntaxError> {
    macros.get(name).map(String::as_str).ok_or_else(|| SyntaxError {
        line,
        messages: vec![format!("macro '{name}' not defined"), "syntax error".into()],
    })
}

/// Puts the tokens of each macro in its place.
pub(super) fn expand(
    statement: &[Spanned],
    macros: &BTreeMap<String, String>,
) -> Result<Vec<Token>, SyntaxError> {
    let mut found = Vec::new();
    for Spanned { token, line } in statement {
        match token {
            Token::Macro(name) => {
                let value = tokens(look_up(name, *line, macros)?)?;
                found.extend(value.into_iter().filter_map(|(_, token)| token));
            }
            token => found.push(token.clone()),
        }
    }
    Ok(found)
}
