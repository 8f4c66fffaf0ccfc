//! `-t table -T command`.

use crate::address::Net;
use crate::cli::{Call, TableCommand};
use crate::kernel::{Kernel, Table};
use crate::output::Output;

pub(super) fn table(
    command: TableCommand,
    name: &str,
    call: &Call,
    kernel: &mut Kernel,
    output: &mut Output,
) {
    let mut addresses = Vec::new();
    for operand in &call.operands {
        let Ok(net) = operand.parse::<Net>() else {
            output.fail(format!("getaddrinfo: {operand}: nodename nor servname provided, or not known"));
            return;
        };
        addresses.push(net);
    }
    let ruleset = kernel.ruleset(&call.anchor);
    let creates = matches!(command, TableCommand::Add | TableCommand::Replace);
    if !ruleset.tables.contains_key(name) {
        if !creates {
            output.fail("Table does not exist.");
            kernel.forget_empty();
            return;
        }
        ruleset.tables.insert(name.into(), Table { is_persistent: true, ..Table::default() });
        output.note("1 table created.");
    }
    let is_referenced = ruleset.refers_to(name);
    let Some(table) = ruleset.tables.get_mut(name) else { return };
    let is_change = !matches!(command, TableCommand::Show | TableCommand::Test | TableCommand::Kill);
    if table.is_constant && is_change {
        output.fail("Operation not permitted.");
        return;
    }
    let asked = addresses.len();
    match command {
        TableCommand::Add => {
            let before = table.addresses.len();
            for net in addresses {
                add(table, net);
            }
            output.note(format!("{}/{asked} addresses added.", table.addresses.len() - before));
        }
        TableCommand::Delete => {
            let before = table.addresses.len();
            table.addresses.retain(|net| !addresses.contains(net));
            output.note(format!("{}/{asked} addresses deleted.", before - table.addresses.len()));
        }
        TableCommand::Replace => replace(table, addresses, output),
        TableCommand::Flush => {
            let deleted = std::mem::take(&mut table.addresses).len();
            output.note(format!("{deleted} addresses deleted."));
        }
        TableCommand::Show => table.addresses.iter().for_each(|net| output.print(format!("   {net}"))),
        TableCommand::Test => {
            let is_in = |asked: &&Net| table.addresses.iter().any(|net| net.covers(**asked));
            let matching = addresses.iter().filter(is_in).count();
            output.note(format!("{matching}/{asked} addresses match."));
            output.code = if matching == asked { 0 } else { 2 };
        }
        TableCommand::Kill if is_referenced => output.fail("Resource busy."),
        TableCommand::Kill => {
            ruleset.tables.remove(name);
            output.note("1 table deleted.");
        }
    }
    kernel.forget_empty();
}

fn add(table: &mut Table, net: Net) {
    if !table.addresses.contains(&net) {
        table.addresses.push(net);
    }
}

fn replace(table: &mut Table, addresses: Vec<Net>, output: &mut Output) {
    let added = addresses.iter().filter(|net| !table.addresses.contains(net)).count();
    let deleted = table.addresses.iter().filter(|net| !addresses.contains(net)).count();
    table.addresses.clear();
    for net in addresses {
        add(table, net);
    }
    if added + deleted == 0 {
        output.note("no changes.");
        return;
    }
    if added > 0 {
        output.note(format!("{added} addresses added."));
    }
    if deleted > 0 {
        output.note(format!("{deleted} addresses deleted."));
    }
}
