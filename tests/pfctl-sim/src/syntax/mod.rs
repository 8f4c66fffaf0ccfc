//! The language of pf.conf, as far as it is simulated.
//!
//! What pf does not know is a syntax error in pfctl's words. What pf knows and the simulator does not is an error that says so: it is
//! never ignored.

mod cursor;
mod expand;
mod hosts;
mod lexer;
mod options;
mod statement;

use std::collections::BTreeMap;

use crate::address::Net;
use crate::kernel::Interface;
use crate::rule::{Rule, Section};

use lexer::{Spanned, Token};
use statement::Statement;

/// What a file of rules says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleFile {
    pub(crate) rules: Vec<Rule>,
    pub(crate) tables: Vec<TableDefinition>,
    pub(crate) anchors: Vec<LoadAnchor>,
}

/// A `table` statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableDefinition {
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) is_persistent: bool,
    pub(crate) is_constant: bool,
    pub(crate) addresses: Vec<Net>,
}

/// A `load anchor` statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoadAnchor {
    pub(crate) name: String,
    pub(crate) file: String,
}

/// What is wrong in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) line: usize,
    /// Lines as pfctl prints them after the file and the line's number.
    pub(crate) messages: Vec<String>,
}

impl SyntaxError {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, messages: vec![message.into()] }
    }

    fn plain(line: usize) -> Self {
        Self::new(line, "syntax error")
    }
}

/// Reads a file of rules. pfctl goes on after an error, so there may be several.
pub(crate) fn parse(text: &str, interfaces: &[Interface]) -> Result<RuleFile, Vec<SyntaxError>> {
    let mut file = RuleFile::default();
    let mut errors = Vec::new();
    let mut macros = BTreeMap::new();
    let mut section = Section::Options;
    let tokens = lexer::tokens(text).map_err(|error| vec![error])?;
    for statement in lexer::statements(tokens) {
        let line = statement.first().map_or(0, |token| token.line);
        let parsed = define_macro(&statement, &mut macros).and_then(|is_macro| {
            if is_macro {
                return Ok(Statement::Nothing);
            }
            let expanded = lexer::expand(&statement, &macros)?;
            statement::parse(&expanded, line, interfaces)
        });
        match parsed {
            Ok(Statement::Table(table)) => file.tables.push(table),
            Ok(Statement::LoadAnchor(anchor)) => file.anchors.push(anchor),
            Ok(Statement::Option) if section > Section::Options => errors.push(out_of_order(line)),
            Ok(Statement::Nothing | Statement::Option) => (),
            Ok(Statement::Rules(rules)) => {
                let own = rules.first().map_or(section, |rule| rule.kind.section());
                if own < section {
                    errors.push(out_of_order(line));
                }
                section = section.max(own);
                file.rules.extend(rules);
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(file) } else { Err(errors) }
}

fn out_of_order(line: usize) -> SyntaxError {
    SyntaxError::new(
        line,
        "Rules must be in order: options, normalization, queueing, translation, dummynet, filtering",
    )
}

/// Takes `name = value` for a macro; says whether it was one.
fn define_macro(statement: &[Spanned], macros: &mut BTreeMap<String, String>) -> Result<bool, SyntaxError> {
    let [Spanned { token: Token::Word(name), line }, Spanned { token: Token::Mark('='), .. }, value @ ..] =
        statement
    else {
        return Ok(false);
    };
    let mut text = Vec::new();
    for Spanned { token, line } in value {
        match token {
            Token::Word(word) | Token::Text(word) => text.push(word.clone()),
            Token::Macro(used) => text.push(lexer::look_up(used, *line, macros)?.to_owned()),
            Token::Mark(_) | Token::Arrow => return Err(SyntaxError::plain(*line)),
        }
    }
    if text.is_empty() || name.contains(['.', '/', ':']) {
        return Err(SyntaxError::plain(*line));
    }
    macros.insert(name.clone(), text.join(" "));
    Ok(true)
}

#[cfg(test)]
mod tests;
