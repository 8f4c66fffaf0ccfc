//! What tests and people ask the simulator itself, below `/simulator`.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::attach::Attachment;
use crate::fault::Rule;
use crate::world::{NewServer, World};

/// Answers a request below `/simulator`.
pub(crate) async fn answer(
    world: &Mutex<World>,
    method: &Method,
    path: &str,
    body: &[u8],
) -> (StatusCode, Value) {
    match act(world, method, path, body).await {
        Ok(value) => (StatusCode::OK, value),
        Err(refusal) => (StatusCode::UNPROCESSABLE_ENTITY, json!(format!("scaleway-sim: {refusal}"))),
    }
}

async fn act(world: &Mutex<World>, method: &Method, path: &str, body: &[u8]) -> Result<Value, String> {
    let lock = || world.lock().unwrap_or_else(PoisonError::into_inner);
    let parts: Vec<&str> = path.split('/').skip(2).collect();
    match (method.as_str(), parts.as_slice()) {
        ("GET", ["servers"]) => Ok(json!(lock().servers())),
        ("POST", ["servers"]) => {
            let new: NewServer = serde_json::from_slice(body).map_err(|error| error.to_string())?;
            let mac = new.mac;
            let id = lock().order(new);
            if let Some(mac) = mac {
                attach(world, &id, mac).await?;
            }
            Ok(json!({"id": id}))
        }
        ("DELETE", ["servers", id]) => {
            lock().remove(id);
            Ok(Value::Null)
        }
        ("PUT", ["servers", id, "mac"]) => {
            let mac = text(body)?.trim().parse().map_err(|_| "the body is ADDRESS:PORT of a Mac's sshd")?;
            attach(world, id, mac).await?;
            Ok(Value::Null)
        }
        ("GET", ["ssh-keys"]) => Ok(json!(lock().ssh_keys())),
        ("GET", ["writes"]) => Ok(json!(lock().writes())),
        ("GET", ["faults"]) => Ok(json!(lock().rules().iter().map(Rule::to_string).collect::<Vec<_>>())),
        ("PUT", ["faults"]) => {
            let rules = text(body)?.lines().map(str::parse::<Rule>).collect::<Result<Vec<_>, _>>();
            let rules = rules.map_err(|error| error.to_string())?;
            let mut world = lock();
            world.clear_rules();
            for rule in rules {
                world.add_rule(rule);
            }
            Ok(Value::Null)
        }
        ("POST", ["held"]) => Ok(json!({"delivered": lock().deliver_held()})),
        _ => Err(format!("{method} {path} is nothing that it does")),
    }
}

fn text(body: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(body).map_err(|error| error.to_string())
}

/// Puts a Mac behind a server's address.
pub(crate) async fn attach(world: &Mutex<World>, id: &str, mac: SocketAddr) -> Result<(), String> {
    let attachment = Attachment::new(mac).await.map_err(|error| format!("port 22 of an address: {error}"))?;
    let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
    world.attach(id, attachment).map_err(|_| format!("there is no server {id}"))
}
