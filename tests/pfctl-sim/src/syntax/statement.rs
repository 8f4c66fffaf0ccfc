//! One statement: a rule, a table, an anchor to load, an option.

use crate::kernel::Interface;
use crate::rule::{Action, BlockPolicy, Direction, Kind, Negated, Peer, Protocol, Rule, State, Translation};

use super::cursor::Cursor;
use super::expand::{Lists, expand};
use super::hosts::{self, interface_name, unsimulated};
use super::lexer::Token;
use super::{LoadAnchor, SyntaxError, TableDefinition, options};

pub(super) enum Statement {
    Nothing,
    Option,
    Table(TableDefinition),
    LoadAnchor(LoadAnchor),
    Rules(Vec<Rule>),
}

/// Reads a statement whose macros are expanded.
pub(super) fn parse(
    tokens: &[Token],
    line: usize,
    interfaces: &[Interface],
) -> Result<Statement, SyntaxError> {
    let cursor = &mut Cursor::new(tokens, line);
    let Some(Token::Word(first)) = cursor.next() else { return Err(cursor.error()) };
    let rule = |kind, action| new_rule(kind, action);
    match first.as_str() {
        "set" => {
            cursor.word()?;
            while cursor.next().is_some() {}
            Ok(Statement::Option)
        }
        "table" => table(cursor).map(Statement::Table),
        "load" => load_anchor(cursor).map(Statement::LoadAnchor),
        "pass" => rules(cursor, rule(Kind::Filter, Action::Pass(State::KeepFromStart)), interfaces),
        "block" => {
            let policy = block_policy(cursor)?;
            rules(cursor, rule(Kind::Filter, Action::Block(policy)), interfaces)
        }
        "scrub" => rules(cursor, rule(Kind::Scrub, Action::Scrub), interfaces),
        "nat" => rules(cursor, rule(Kind::Nat, Action::Translate(None)), interfaces),
        "rdr" => rules(cursor, rule(Kind::Rdr, Action::Translate(None)), interfaces),
        "no" if cursor.takes("nat") => no_translation(cursor, Kind::Nat, interfaces),
        "no" if cursor.takes("rdr") => no_translation(cursor, Kind::Rdr, interfaces),
        "anchor" => anchor(cursor, Kind::Filter, interfaces),
        "nat-anchor" => anchor(cursor, Kind::Nat, interfaces),
        "rdr-anchor" => anchor(cursor, Kind::Rdr, interfaces),
        "scrub-anchor" => anchor(cursor, Kind::Scrub, interfaces),
        "dummynet-anchor" => anchor(cursor, Kind::Dummynet, interfaces),
        "antispoof" | "binat" | "dummynet" | "altq" | "queue" | "include" => Err(unsimulated(cursor, first)),
        _ => Err(cursor.error()),
    }
}

fn new_rule(kind: Kind, action: Action) -> Rule {
    Rule {
        kind,
        action,
        direction: None,
        quick: false,
        interface: None,
        family: None,
        protocol: None,
        source: Peer::any(),
        destination: Peer::any(),
    }
}

fn block_policy(cursor: &mut Cursor<'_>) -> Result<BlockPolicy, SyntaxError> {
    if cursor.takes("return") || cursor.takes("return-rst") || cursor.takes("return-icmp") {
        if cursor.takes_mark('(') {
            return Err(unsimulated(cursor, "return (…)"));
        }
        return Ok(BlockPolicy::Return);
    }
    cursor.takes("drop");
    Ok(BlockPolicy::Drop)
}

fn anchor(cursor: &mut Cursor<'_>, kind: Kind, interfaces: &[Interface]) -> Result<Statement, SyntaxError> {
    let name = cursor.word()?.to_owned();
    if name.is_empty() || cursor.takes_mark('{') {
        return Err(unsimulated(cursor, "anchor with rules in braces"));
    }
    rules(cursor, new_rule(kind, Action::Anchor(name)), interfaces)
}

fn no_translation(
    cursor: &mut Cursor<'_>,
    kind: Kind,
    interfaces: &[Interface],
) -> Result<Statement, SyntaxError> {
    let lists_of = rule_lists(cursor, new_rule(kind, Action::Translate(None)), interfaces)?;
    if cursor.is_at_end() { finish(cursor, &lists_of.0, &lists_of.1) } else { Err(cursor.error()) }
}

/// The rest of a rule after its action.
fn rules(cursor: &mut Cursor<'_>, rule: Rule, interfaces: &[Interface]) -> Result<Statement, SyntaxError> {
    let (mut rule, lists) = rule_lists(cursor, rule, interfaces)?;
    match &mut rule.action {
        Action::Pass(state) => *state = options::filter(cursor)?,
        Action::Block(_) => {
            options::filter(cursor)?;
        }
        Action::Scrub => options::scrub(cursor)?,
        Action::Translate(target) => *target = Some(translation(cursor)?),
        Action::Anchor(_) if cursor.is_at_end() => (),
        Action::Anchor(_) => return Err(cursor.error()),
    }
    finish(cursor, &rule, &lists)
}

/// Direction, quick, interfaces, family, protocols and hosts.
fn rule_lists(
    cursor: &mut Cursor<'_>,
    mut rule: Rule,
    interfaces: &[Interface],
) -> Result<(Rule, Lists), SyntaxError> {
    if matches!(rule.kind, Kind::Filter | Kind::Scrub) {
        if cursor.takes("in") {
            rule.direction = Some(Direction::In);
        } else if cursor.takes("out") {
            rule.direction = Some(Direction::Out);
        }
    } else {
        // `nat pass` and `rdr pass`: what is translated is not filtered.
        if cursor.takes("pass") {
            return Err(unsimulated(cursor, "nat pass"));
        }
    }
    if cursor.takes("log") && cursor.takes_mark('(') {
        while !cursor.takes_mark(')') {
            cursor.word()?;
        }
    }
    if rule.kind == Kind::Filter {
        rule.quick = cursor.takes("quick");
    }
    let on = if cursor.takes("on") {
        let interface = |cursor: &mut Cursor<'_>| {
            let not = cursor.takes_mark('!');
            Ok(Some(Negated { not, value: cursor.word()?.to_owned() }))
        };
        cursor.list(interface)?
    } else {
        vec![None]
    };
    if cursor.takes("inet") {
        rule.family = Some(crate::Family::Inet);
    } else if cursor.takes("inet6") {
        rule.family = Some(crate::Family::Inet6);
    }
    let protocols =
        if cursor.takes("proto") { cursor.list(|cursor| protocol(cursor).map(Some))? } else { vec![None] };
    let hosts = hosts::parse(cursor, interfaces)?;
    Ok((rule, Lists { interfaces: on, protocols, hosts }))
}

fn protocol(cursor: &mut Cursor<'_>) -> Result<Protocol, SyntaxError> {
    match cursor.word()? {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        "icmp" => Ok(Protocol::Icmp),
        "icmp6" | "ipv6-icmp" => Ok(Protocol::Icmp6),
        other => Err(cursor.refuse(format!("unknown protocol {other}"))),
    }
}

/// `-> address` or `-> (interface)`, and macOS' `extfilter`.
fn translation(cursor: &mut Cursor<'_>) -> Result<Translation, SyntaxError> {
    let Some(Token::Arrow) = cursor.next() else { return Err(cursor.error()) };
    let target = if cursor.takes_mark('(') {
        let name = interface_name(cursor)?;
        cursor.mark(')')?;
        Translation::Interface(name)
    } else {
        Translation::Address(cursor.number()?)
    };
    if cursor.takes("extfilter") {
        cursor.word()?;
    }
    cursor.takes("static-port");
    if cursor.takes("port") {
        return Err(unsimulated(cursor, "-> … port"));
    }
    if cursor.is_at_end() { Ok(target) } else { Err(cursor.error()) }
}

fn finish(cursor: &Cursor<'_>, rule: &Rule, lists: &Lists) -> Result<Statement, SyntaxError> {
    let ports = [&lists.hosts.sources, &lists.hosts.destinations];
    let has_port = ports.into_iter().flatten().any(|peer| peer.port.is_some());
    let has_no_port = |protocol: &Option<Protocol>| !matches!(protocol, Some(Protocol::Tcp | Protocol::Udp));
    if has_port && lists.protocols.iter().any(has_no_port) {
        let messages = ["port only applies to tcp/udp", "skipping rule due to errors", NO_COMBINATION];
        return Err(SyntaxError { line: cursor.line(), messages: messages.map(Into::into).into() });
    }
    let rules = expand(rule, lists);
    if rules.is_empty() { Err(cursor.refuse(NO_COMBINATION)) } else { Ok(Statement::Rules(rules)) }
}

const NO_COMBINATION: &str = "rule expands to no valid combination";

fn load_anchor(cursor: &mut Cursor<'_>) -> Result<LoadAnchor, SyntaxError> {
    if !cursor.takes("anchor") {
        return Err(cursor.error());
    }
    let name = cursor.word()?.to_owned();
    if !cursor.takes("from") {
        return Err(cursor.error());
    }
    let file = cursor.word()?.to_owned();
    if cursor.is_at_end() { Ok(LoadAnchor { name, file }) } else { Err(cursor.error()) }
}

fn table(cursor: &mut Cursor<'_>) -> Result<TableDefinition, SyntaxError> {
    cursor.mark('<')?;
    let name = cursor.word()?.to_owned();
    cursor.mark('>')?;
    if name.len() > 31 {
        return Err(cursor.refuse("table name too long, max 31 chars"));
    }
    let (mut is_persistent, mut is_constant, mut addresses) = (false, false, Vec::new());
    while let Some(token) = cursor.peek() {
        match token {
            Token::Word(word) if word == "persist" => is_persistent = true,
            Token::Word(word) if word == "const" => is_constant = true,
            Token::Word(word) if word == "counters" => (),
            Token::Word(word) if word == "file" => return Err(unsimulated(cursor, "table … file")),
            Token::Mark('{') => {
                cursor.next();
                while !cursor.takes_mark('}') {
                    if cursor.takes_mark('!') {
                        return Err(unsimulated(cursor, "! in a table"));
                    }
                    addresses.push(cursor.number()?);
                    cursor.takes_mark(',');
                }
                continue;
            }
            _ => return Err(cursor.error()),
        }
        cursor.next();
    }
    Ok(TableDefinition { line: cursor.line(), name, is_persistent, is_constant, addresses })
}
