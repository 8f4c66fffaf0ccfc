//! `pfctl -f`: a file of rules takes the place of an anchor's rules, as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use crate::fault::Fault;
use crate::kernel::{Kernel, Ruleset, Table};
use crate::mac::Mac;
use crate::output::Output;
use crate::syntax::{self, LoadAnchor, RuleFile, TableDefinition};

/// What pfctl prints after every file that it does not load.
const NOT_LOADED: &str = "pfctl: Syntax error in config file: pf rules not loaded";

/// How often a load that is held looks whether it still is.
const POLL: Duration = Duration::from_millis(10);

/// A file, and the anchor whose rules it has.
pub(crate) struct AnchorFile {
    path: String,
    anchor: String,
    content: RuleFile,
}

/// The lines of a load that failed.
pub(crate) type Failure = Vec<String>;

/// `pfctl [-n] [-a anchor] -f path`.
pub(crate) fn load(mac: &Mac, path: &str, anchor: &str, is_dry: bool, output: &mut Output) {
    let result = begin(mac, path, anchor).and_then(|(files, tickets)| {
        while mac.faults().is_on(Fault::HoldLoad) {
            thread::sleep(POLL);
        }
        let is_busy = mac.faults().is_on(Fault::TableBusy);
        let commit = |kernel: &mut Kernel| {
            check_tickets(kernel, &files, &tickets)?;
            check_fault(&files, is_busy)?;
            let mut loaded = kernel.clone();
            commit(&mut loaded, files, is_dry)?;
            *kernel = loaded;
            Ok(())
        };
        mac.update(commit).map_err(|error| vec![format!("pfctl: /dev/pf: {error}")])?
    });
    if let Err(lines) = result {
        for line in lines {
            output.note(line);
        }
        output.code = 1;
    }
}

type Begun = (Vec<AnchorFile>, BTreeMap<String, u64>);

/// Reads all files, and opens a transaction on each anchor.
fn begin(mac: &Mac, path: &str, anchor: &str) -> Result<Begun, Failure> {
    let begin = |kernel: &mut Kernel| {
        let files = read(mac, path, anchor, kernel)?;
        let mut tickets = BTreeMap::new();
        for file in &files {
            let ticket = kernel.tickets.entry(file.anchor.clone()).or_default();
            *ticket += 1;
            tickets.insert(file.anchor.clone(), *ticket);
        }
        Ok((files, tickets))
    };
    mac.update(begin).map_err(|error| vec![format!("pfctl: /dev/pf: {error}")])?
}

/// Reads a file, and those that its `load anchor` statements name.
pub(crate) fn read(mac: &Mac, path: &str, anchor: &str, kernel: &Kernel) -> Result<Vec<AnchorFile>, Failure> {
    let text = mac.read(path).map_err(|error| {
        let reason = reason(&error);
        let main = format!("pfctl: cannot open the main config file!: {reason}");
        vec![format!("pfctl: {path}: {reason}"), main, NOT_LOADED.into()]
    })?;
    let content = syntax::parse(&text, &kernel.interfaces).map_err(|errors| {
        let of_error = errors.into_iter().flat_map(|error| {
            let line = error.line;
            error.messages.into_iter().map(move |message| (line, message))
        });
        let lines = of_error.map(|(line, message)| format!("{path}:{line}: {message}"));
        lines.chain([NOT_LOADED.to_owned()]).collect::<Vec<_>>()
    })?;
    let mut nested = Vec::new();
    for LoadAnchor { name, file } in &content.anchors {
        let below = if anchor.is_empty() { name.clone() } else { format!("{anchor}/{name}") };
        nested.extend(read(mac, file, &below, kernel)?);
    }
    let mut files = vec![AnchorFile { path: path.into(), anchor: anchor.into(), content }];
    files.append(&mut nested);
    Ok(files)
}

fn reason(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "No such file or directory",
        std::io::ErrorKind::PermissionDenied => "Permission denied",
        _ => "Input/output error",
    }
}

/// Another pfctl has begun to load one of the anchors since.
fn check_tickets(
    kernel: &Kernel,
    files: &[AnchorFile],
    tickets: &BTreeMap<String, u64>,
) -> Result<(), Failure> {
    for file in files {
        if kernel.tickets.get(&file.anchor) != tickets.get(&file.anchor) {
            return Err(match file.content.tables.first() {
                Some(table) => busy(file, table),
                None => vec!["pfctl: DIOCADDRULE: Resource busy".into()],
            });
        }
    }
    Ok(())
}

fn check_fault(files: &[AnchorFile], is_busy: bool) -> Result<(), Failure> {
    let table = files.iter().find_map(|file| Some((file, file.content.tables.first()?)));
    match table {
        Some((file, table)) if is_busy => Err(busy(file, table)),
        _ => Ok(()),
    }
}

fn busy(file: &AnchorFile, table: &TableDefinition) -> Failure {
    let line = format!("{}:{}: cannot define table {}: Resource busy", file.path, table.line, table.name);
    vec![line, NOT_LOADED.into()]
}

/// Puts the files' rules and tables in place. With `-n` only those of `load anchor`, as the real pfctl does by mistake.
pub(crate) fn commit(kernel: &mut Kernel, files: Vec<AnchorFile>, is_dry: bool) -> Result<(), Failure> {
    let mut loaded = BTreeSet::new();
    for (index, file) in files.into_iter().enumerate() {
        let is_main = index == 0;
        let is_repeated = !loaded.insert(file.anchor.clone());
        if let Some(table) = file
            .content
            .tables
            .iter()
            .find(|table| is_repeated || is_dry && !is_main || is_left(kernel, &file.anchor, &table.name))
        {
            return Err(busy(&file, table));
        }
        if !(is_dry && is_main) {
            replace(kernel.ruleset(&file.anchor), file.content);
        }
    }
    kernel.forget_empty();
    Ok(())
}

/// Whether rules that are gone have left a persistent table of that name, in the anchor or in the main ruleset.
fn is_left(kernel: &Kernel, anchor: &str, table: &str) -> bool {
    kernel.has_left(anchor, table) || kernel.has_left("", table)
}

fn replace(ruleset: &mut Ruleset, file: RuleFile) {
    let mut tables = std::mem::take(&mut ruleset.tables);
    for TableDefinition { name, is_persistent, is_constant, mut addresses, .. } in file.tables {
        if addresses.is_empty() {
            // A definition without addresses leaves them as they are.
            addresses = tables.remove(&name).map(|table| table.addresses).unwrap_or_default();
        }
        tables.remove(&name);
        ruleset.tables.insert(name, Table { is_persistent, is_constant, addresses });
    }
    tables.retain(|_, table| table.is_persistent);
    ruleset.tables.append(&mut tables);
    ruleset.rules = file.rules;
}
