//! Which servers a machine can have.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{host, image};
use crate::pool::holders::Holders;
use crate::pool::{ClaimRequest, HostName, HostState};
use crate::scaleway::Server;

/// What to do about a machine's claim.
#[derive(Debug)]
pub(super) enum Choice<'a> {
    /// It has this server already.
    Own(&'a Server),
    /// It can have any of these, the best first.
    Try(Vec<&'a Server>),
    /// It can have none. The words say why.
    None(String),
}

/// Why a server of the pool cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unfit {
    Held,
    Changing,
    Broken,
    DeletionScheduled,
    OtherKind,
    OtherOs,
}

/// Chooses among all servers of the zone.
pub(super) fn choose<'a>(request: &ClaimRequest, servers: &'a [Server], holders: &Holders<'_>) -> Choice<'a> {
    let machine = &request.machine;
    // The caller may not have seen yet what the machine's status says.
    let recorded = holders.host_of(machine);
    let is_free = |server: &&Server| !holders.is_held_by_other(&server.id, machine);
    let own = servers.iter().find(|server| Some(&server.id) == recorded);
    let named = || servers.iter().filter(is_free).find(|server| server.name == machine.name);
    if let Some(server) = own.or_else(named) {
        return Choice::Own(server);
    }
    let (mut free, mut pending) = (Vec::new(), Vec::new());
    let mut unfit: BTreeMap<Unfit, usize> = BTreeMap::new();
    for server in servers {
        let fitting = match HostName::of(&server.name, &request.prefix) {
            HostName::Free => &mut free,
            // What a claim has begun with is taken last: it may be a claim of a former leader that is not over.
            HostName::Pending => &mut pending,
            HostName::Quarantined | HostName::Taken(_) => continue,
        };
        match fits(request, server, is_free(&server)) {
            Ok(()) => fitting.push(server),
            Err(why) => *unfit.entry(why).or_default() += 1,
        }
    }
    free.append(&mut pending);
    if free.is_empty() { Choice::None(shortage(request, &unfit)) } else { Choice::Try(free) }
}

fn fits(request: &ClaimRequest, server: &Server, is_free: bool) -> Result<(), Unfit> {
    let check = |is_right: bool, why| if is_right { Ok(()) } else { Err(why) };
    check(is_free, Unfit::Held)?;
    check(!server.deletion_scheduled, Unfit::DeletionScheduled)?;
    check(server.kind == request.kind, Unfit::OtherKind)?;
    let has_family = server.os.as_ref().is_some_and(|image| image::is_of_family(image, &request.os));
    match host::state(server) {
        HostState::Ready => check(has_family, Unfit::OtherOs),
        HostState::Changing(_) => Err(Unfit::Changing),
        HostState::Broken(_) => Err(Unfit::Broken),
    }
}

fn shortage(request: &ClaimRequest, unfit: &BTreeMap<Unfit, usize>) -> String {
    let total: usize = unfit.values().sum();
    let mut text =
        format!("{total} in {} have a name that begins with `{}`", request.zone, request.prefix.as_str());
    for (why, count) in unfit {
        let why = match why {
            Unfit::Held => "held by a machine".to_owned(),
            Unfit::Changing => "being installed or restarted".to_owned(),
            Unfit::Broken => "broken".to_owned(),
            Unfit::DeletionScheduled => "going to be deleted".to_owned(),
            Unfit::OtherKind => format!("not of the type {}", request.kind),
            Unfit::OtherOs => format!("ready with another macOS than {}", request.os),
        };
        let _ = write!(text, ", {count} {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::names::{HostId, MachineRef, Zone};
    use crate::pool::{MachineRecord, OsFamily, PoolPrefix};

    fn request() -> ClaimRequest {
        ClaimRequest {
            machine: machine("runner-1"),
            prefix: PoolPrefix::new("pool-").unwrap(),
            zone: Zone::parse("fr-par-1").unwrap(),
            kind: "M2-L".to_owned(),
            os: OsFamily::pin("Tahoe").unwrap(),
        }
    }

    fn machine(name: &str) -> MachineRef {
        MachineRef { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn server(id: &str, name: &str, changes: &Value) -> Server {
        let mut server = json!({
            "id": id, "name": name, "type": "M2-L", "status": "ready", "delivered": true, "ssh_username": "m1",
            "os": {"id": "1", "name": "macos-tahoe-26.6", "family": "26"},
        });
        for (key, value) in changes.as_object().unwrap() {
            server[key] = value.clone();
        }
        serde_json::from_value(server).unwrap()
    }

    fn record(name: &str, host: Option<&str>) -> MachineRecord {
        MachineRecord {
            machine: machine(name),
            zone: Zone::parse("fr-par-1").unwrap(),
            prefix: None,
            host: host.map(|id| HostId::parse(id).unwrap()),
        }
    }

    /// In words: `own ID`, `try IDS`, or the shortage.
    fn chosen(servers: &[Server], records: &[MachineRecord]) -> String {
        let claimed = BTreeMap::new();
        match choose(&request(), servers, &Holders::new(records, &claimed)) {
            Choice::Own(server) => format!("own {}", server.id),
            Choice::Try(servers) => {
                let ids: Vec<&str> = servers.iter().map(|server| server.id.as_str()).collect();
                format!("try {}", ids.join(" "))
            }
            Choice::None(shortage) => shortage,
        }
    }

    #[test]
    fn a_server_with_the_machines_name_is_found_again_whatever_it_is_doing() {
        let servers = [
            server("1", "pool-1", &json!({})),
            server("2", "runner-1", &json!({"status": "reinstalling", "type": "M1-M"})),
        ];
        assert_eq!(chosen(&servers, &[record("runner-1", None)]), "own 2");
    }

    #[test]
    fn the_status_counts_for_more_than_names() {
        let servers = [server("1", "pool-1", &json!({})), server("2", "runner-1", &json!({}))];
        assert_eq!(chosen(&servers, &[record("runner-1", Some("1"))]), "own 1");
        let other = [record("runner-1", None), record("runner-2", Some("2"))];
        assert_eq!(chosen(&servers, &other), "try 1");
    }

    #[test]
    fn begun_claims_are_taken_last_and_other_names_never() {
        let servers = [
            server("1", "tuist-claim-pending-1", &json!({})),
            server("2", "pool-2", &json!({})),
            server("3", "other-3", &json!({})),
            server("4", "tuist-quarantined-x", &json!({})),
            server("5", "pool-5", &json!({})),
        ];
        assert_eq!(chosen(&servers, &[record("runner-1", None)]), "try 2 5 1");
    }

    #[test]
    fn servers_that_do_not_fit_are_counted() {
        let servers = [
            server("1", "pool-1", &json!({"status": "reinstalling"})),
            server("2", "pool-2", &json!({"delivered": false})),
            server("3", "pool-3", &json!({"status": "error"})),
            server("4", "pool-4", &json!({"type": "M1-M"})),
            server("5", "pool-5", &json!({"os": {"id": "2", "name": "devos-tahoe-26.6", "family": "26"}})),
            server("6", "pool-6", &json!({"deletion_scheduled": true})),
            server("7", "pool-7", &json!({})),
        ];
        assert_eq!(
            chosen(&servers, &[record("runner-1", None), record("runner-2", Some("7"))]),
            "7 in fr-par-1 have a name that begins with `pool-`, 1 held by a machine, 2 being installed or restarted, 1 broken, \
             1 going to be deleted, 1 not of the type M2-L, 1 ready with another macOS than tahoe"
        );
        assert_eq!(chosen(&[], &[]), "0 in fr-par-1 have a name that begins with `pool-`");
    }
}
