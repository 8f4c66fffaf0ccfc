//! `from … to …`: addresses, tables, interfaces and ports.

use crate::kernel::Interface;
use crate::rule::{Host, Negated, Peer, Ports};
use crate::rule_text::service;

use super::SyntaxError;
use super::cursor::Cursor;
use super::lexer::Token;

/// The sources and destinations of a rule, each with all its alternatives.
pub(super) struct Hosts {
    pub(super) sources: Vec<Peer>,
    pub(super) destinations: Vec<Peer>,
}

/// Reads `all`, or `from …`, `to …`, or both, or nothing.
pub(super) fn parse(cursor: &mut Cursor<'_>, interfaces: &[Interface]) -> Result<Hosts, SyntaxError> {
    let (mut sources, mut destinations) = (vec![Peer::any()], vec![Peer::any()]);
    if !cursor.takes("all") {
        if cursor.takes("from") {
            sources = peers(cursor, interfaces)?;
        }
        if cursor.takes("to") {
            destinations = peers(cursor, interfaces)?;
        }
    }
    Ok(Hosts { sources, destinations })
}

fn peers(cursor: &mut Cursor<'_>, interfaces: &[Interface]) -> Result<Vec<Peer>, SyntaxError> {
    let hosts = if matches!(cursor.peek(), Some(Token::Word(word)) if word == "port") {
        vec![Negated { not: false, value: Host::Any }]
    } else {
        cursor.list(|cursor| host(cursor, interfaces))?.into_iter().flatten().collect()
    };
    let ports =
        if cursor.takes("port") { cursor.list(port)?.into_iter().map(Some).collect() } else { vec![None] };
    Ok(hosts
        .into_iter()
        .flat_map(|host| ports.iter().map(move |&port| Peer { host: host.clone(), port }))
        .collect())
}

/// One host. `self` and the name of an interface stand for the addresses that it has now.
fn host(cursor: &mut Cursor<'_>, interfaces: &[Interface]) -> Result<Vec<Negated<Host>>, SyntaxError> {
    let not = cursor.takes_mark('!');
    let one = |value| Ok(vec![Negated { not, value }]);
    if cursor.takes_mark('<') {
        let name = cursor.word()?.to_owned();
        cursor.mark('>')?;
        return one(Host::Table(name));
    }
    if cursor.takes_mark('(') {
        let name = interface_name(cursor)?;
        cursor.mark(')')?;
        return one(Host::Interface(name));
    }
    let word = cursor.word()?;
    match word {
        "any" if !not => return one(Host::Any),
        "any" => return Err(cursor.error()),
        "no-route" | "route" | "urpf-failed" => return Err(unsimulated(cursor, word)),
        _ => (),
    }
    if let Ok(net) = word.parse() {
        return one(Host::Net(net));
    }
    let named = interfaces.iter().filter(|interface| word == "self" || interface.name == word);
    let addresses: Vec<_> = named.flat_map(|interface| &interface.addresses).copied().collect();
    if addresses.is_empty() {
        return Err(cursor.refuse(format!("no IP address found for {word}")));
    }
    let of_address = |address| Negated { not, value: Host::Net(crate::Net::host(address)) };
    Ok(addresses.into_iter().map(of_address).collect())
}

/// The name of an interface in parentheses. `(en0:0)` is the first of its addresses.
pub(super) fn interface_name(cursor: &mut Cursor<'_>) -> Result<String, SyntaxError> {
    let name = cursor.word()?;
    Ok(name.split_once(':').map_or(name, |(name, _)| name).to_owned())
}

fn port(cursor: &mut Cursor<'_>) -> Result<Ports, SyntaxError> {
    if cursor.takes_mark('!') || cursor.takes_mark('<') || cursor.takes_mark('>') {
        return Err(unsimulated(cursor, "port with !=, < or >"));
    }
    cursor.takes_mark('=');
    let word = cursor.word()?;
    let number = |text: &str| {
        text.parse()
            .ok()
            .or_else(|| service(text))
            .ok_or_else(|| cursor.refuse(format!("unknown port {text}")))
    };
    match word.split_once(':') {
        Some((first, last)) => Ok(Ports::Range(number(first)?, number(last)?)),
        None => Ok(Ports::One(number(word)?)),
    }
}

/// An error for what pf knows and the simulator does not.
pub(super) fn unsimulated(cursor: &Cursor<'_>, what: &str) -> SyntaxError {
    cursor.refuse(format!("pfctl-sim does not simulate `{what}`"))
}
