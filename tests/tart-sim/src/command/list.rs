//! `tart list` and `tart get`.

use std::io;
use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tart_sim::Fault;

use crate::cli::{self, Format};
use crate::command::clone::{self, read_config};
use crate::error::{Error, Result};
use crate::home::Home;
use crate::home::vm_dir::VmDir;
use crate::host::faults;
use crate::oci::Cache;
use crate::output::{file_error, json as json_output, stdout, table};
use crate::version;

const GB: u64 = 1_000_000_000;

/// One VM in the list.
struct Row {
    source: &'static str,
    name: String,
    disk: u64,
    size: u64,
    accessed: SystemTime,
    state: &'static str,
}

/// Lists local VMs, then cached images. One unreadable VM fails the whole list.
pub(crate) fn list(home: &Home, args: &cli::List) -> Result<()> {
    let wants = |source: &str| args.source.as_deref().is_none_or(|wanted| wanted == source);
    if !wants("local") && !wants("oci") {
        let source = args.source.as_deref().unwrap_or_default();
        return Err(Error::usage(format!("'{source}' is not a valid <source>")));
    }
    let mut rows = Vec::new();
    if wants("local") {
        for (name, vm) in home.local_vms()? {
            rows.push(row("local", name, &vm)?);
        }
    }
    if wants("oci") {
        for cached in Cache::new(home).list().map_err(Error::other)? {
            rows.push(row("OCI", cached.name, &cached.vm)?);
        }
    }
    if args.quiet {
        for row in &rows {
            stdout::line(&row.name);
        }
    } else {
        match args.format {
            Format::Json => stdout::line(json_output::pretty(&rows.iter().map(Row::json).collect())),
            Format::Text => stdout::write(&text(&rows)),
        }
    }
    Ok(())
}

fn row(source: &'static str, name: String, vm: &VmDir) -> Result<Row> {
    let vanished = |error: io::Error| Error::other(file_error::reading(&vm.config_path(), &error));
    if faults::is_on_for(Fault::ListRace, &name) {
        return Err(clone::vanished(vm));
    }
    read_config(vm)?;
    Ok(Row {
        source,
        name,
        disk: vm.size().map_err(vanished)? / GB,
        size: vm.allocated_size().map_err(vanished)? / GB,
        accessed: vm.access_date().map_err(vanished)?,
        state: vm.state().as_str(),
    })
}

/// Whether this release shows when a VM was last used. Older ones show its size twice.
fn says_accessed() -> bool {
    version::at_least((2, 31, 0))
}

impl Row {
    fn json(&self) -> Value {
        let mut fields = Map::from_iter([
            ("Source".into(), json!(self.source)),
            ("Name".into(), json!(self.name)),
            ("Disk".into(), json!(self.disk)),
            ("Size".into(), json!(self.size)),
            ("Running".into(), json!(self.state == "running")),
            ("State".into(), json!(self.state)),
        ]);
        if says_accessed() {
            let accessed = Timestamp::try_from(self.accessed).unwrap_or_default();
            fields.insert("Accessed".into(), json!(accessed.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()));
        } else {
            fields.insert("SizeOnDisk".into(), json!(self.size));
        }
        Value::Object(fields)
    }
}

fn text(rows: &[Row]) -> String {
    let fourth = if says_accessed() { "Accessed" } else { "SizeOnDisk" };
    let mut lines = vec![["Source", "Name", "Disk", "Size", fourth, "State"].map(String::from).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let fourth = if says_accessed() { ago(row.accessed) } else { row.size.to_string() };
        let size = |gb: u64| if version::is_snapshot() { format!("{gb} GB") } else { gb.to_string() };
        vec![row.source.into(), row.name.clone(), size(row.disk), size(row.size), fourth, row.state.into()]
    }));
    table::print(&lines)
}

/// `20 hours ago`.
fn ago(time: SystemTime) -> String {
    let (count, unit) = match time.elapsed().unwrap_or_default().as_secs() {
        s if s < 60 => (s, "second"),
        s if s < 3600 => (s / 60, "minute"),
        s if s < 86_400 => (s / 3600, "hour"),
        s => (s / 86_400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

/// Prints one local VM's configuration.
pub(crate) fn get(home: &Home, args: &cli::Get) -> Result<()> {
    let vm = home.open_local(&args.name)?;
    let config = read_config(&vm)?;
    let state = vm.state().as_str();
    #[expect(clippy::cast_precision_loss, reason = "three decimals of a gigabyte are asked for")]
    let size = format!("{:.3}", vm.allocated_size().map_err(Error::other)? as f64 / 1e9);
    let mut fields = vec![
        ("OS", json!(config.os)),
        ("CPU", json!(config.cpu_count)),
        ("Memory", json!(config.memory_size >> 20)),
        ("Disk", json!(vm.size().map_err(Error::other)? / GB)),
        ("DiskFormat", json!(config.disk_format)),
        ("Size", json!(size)),
        ("Display", json!(config.display.to_string())),
        ("Running", json!(state == "running")),
        ("State", json!(state)),
    ];
    if !version::at_least((2, 28, 0)) {
        fields.retain(|(name, _)| *name != "DiskFormat");
    }
    match args.format {
        Format::Json => {
            let object = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            stdout::line(json_output::pretty(&Value::Object(object)));
        }
        Format::Text => {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let (names, values) =
                fields.iter().map(|(name, value)| ((*name).to_owned(), plain(value))).unzip();
            stdout::write(&table::print(&[names, values]));
        }
    }
    Ok(())
}
