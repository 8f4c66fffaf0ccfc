//! Where a parser stands in a statement.

use super::SyntaxError;
use super::lexer::Token;

/// The tokens of a statement that are still to be read.
pub(super) struct Cursor<'a> {
    tokens: &'a [Token],
    line: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(tokens: &'a [Token], line: usize) -> Self {
        Self { tokens, line }
    }

    /// A syntax error in this statement.
    pub(super) fn error(&self) -> SyntaxError {
        SyntaxError::plain(self.line)
    }

    /// Another error in this statement.
    pub(super) fn refuse(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.line, message)
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(super) fn peek(&self) -> Option<&'a Token> {
        self.tokens.first()
    }

    pub(super) fn next(&mut self) -> Option<&'a Token> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    /// Reads this word if it is the next.
    pub(super) fn takes(&mut self, word: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        if is_next {
            self.next();
        }
        is_next
    }

    /// Reads this mark if it is the next.
    pub(super) fn takes_mark(&mut self, mark: char) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Mark(next)) if *next == mark);
        if is_next {
            self.next();
        }
        is_next
    }

    pub(super) fn mark(&mut self, mark: char) -> Result<(), SyntaxError> {
        if self.takes_mark(mark) { Ok(()) } else { Err(self.error()) }
    }

    /// A word, with or without quotes.
    pub(super) fn word(&mut self) -> Result<&'a str, SyntaxError> {
        match self.next() {
            Some(Token::Word(word) | Token::Text(word)) => Ok(word),
            _ => Err(self.error()),
        }
    }

    /// A word that is a number.
    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Result<T, SyntaxError> {
        let error = self.error();
        self.word()?.parse().map_err(|_| error)
    }

    /// One item, or a list of them in braces; commas between them are optional.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<Vec<T>, SyntaxError> {
        if !self.takes_mark('{') {
            return Ok(vec![item(self)?]);
        }
        let mut items = Vec::new();
        loop {
            items.push(item(self)?);
            self.takes_mark(',');
            if self.takes_mark('}') {
                return Ok(items);
            }
        }
    }
}
