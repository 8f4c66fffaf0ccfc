//! The simulated Scaleway over HTTP.

#![expect(clippy::unwrap_used, reason = "what the tests call is part of the tests")]

use std::net::SocketAddr;

use jiff::Timestamp;
use scaleway_sim::{Install, NewServer, Scaleway, Settings, Status};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const SERVERS: &str = "/apple-silicon/v1alpha1/zones/fr-par-1/servers";

async fn scaleway() -> Scaleway {
    let settings = Settings { install: Install::ByHand, ..Settings::default() };
    Scaleway::start(settings).await.unwrap()
}

/// The status and the body of an answer; 0 if there is none.
async fn ask(scaleway: &Scaleway, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
    let address: SocketAddr = scaleway.url().trim_start_matches("http://").parse().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Auth-Token: {token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    let status = answer.split(' ').nth(1).map_or(0, |status| status.parse().unwrap());
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

async fn call(scaleway: &Scaleway, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, body) = ask(scaleway, method, path, "simulated-secret-key", &body).await;
    (status, serde_json::from_str(&body).unwrap_or_default())
}

#[tokio::test]
async fn a_rename_takes_any_name_and_the_last_one_wins() {
    let scaleway = scaleway().await;
    let id = scaleway.world().order(NewServer::named("a"));
    scaleway.world().order(NewServer::named("b"));
    let path = format!("{SERVERS}/{id}");
    for name in ["b", "c", "b"] {
        let (status, server) = call(&scaleway, "PATCH", &path, &json!({"name": name})).await;
        assert_eq!((status, server["name"].as_str()), (200, Some(name)));
    }
    let (status, error) = call(&scaleway, "PATCH", &path, &json!({"nam": "x"})).await;
    assert_eq!((status, error["type"].as_str()), (400, Some("invalid_arguments")));
}

#[tokio::test]
async fn lists_have_pages_of_a_hundred_at_most_the_oldest_first() {
    let scaleway = scaleway().await;
    for number in 0..120 {
        scaleway.world().order(NewServer::named(&format!("{number}")));
    }
    let (_, page) = call(&scaleway, "GET", &format!("{SERVERS}?page=2&page_size=100"), &Value::Null).await;
    let servers = page["servers"].as_array().unwrap();
    assert_eq!((servers.len(), page["total_count"].as_u64()), (20, Some(120)));
    assert_eq!(servers[0]["name"], "100");
    let (_, page) = call(&scaleway, "GET", SERVERS, &Value::Null).await;
    assert_eq!(page["servers"].as_array().unwrap().len(), 50);
    for query in ["page_size=101", "page=0", "name=x", "order_by=name"] {
        let (status, _) = call(&scaleway, "GET", &format!("{SERVERS}?{query}"), &Value::Null).await;
        assert_eq!(status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_server_that_is_installed_refuses_changes_until_it_is_ready() {
    let scaleway = scaleway().await;
    let id = scaleway.world().order(NewServer::named("a"));
    let path = format!("{SERVERS}/{id}");
    let (status, server) = call(&scaleway, "POST", &format!("{path}/reinstall"), &json!({})).await;
    assert_eq!((status, server["status"].as_str()), (200, Some("reinstalling")));
    for (method, path, body) in [
        ("POST", format!("{path}/reinstall"), json!({})),
        ("POST", format!("{path}/reboot"), json!({})),
        ("PATCH", path.clone(), json!({"name": "b"})),
    ] {
        let (status, error) = call(&scaleway, method, &path, &body).await;
        assert_eq!((status, error["type"].as_str()), (409, Some("transient_state")), "{method} {path}");
        assert_eq!(error["current_state"], "reinstalling");
    }
    scaleway.world().finish_changes();
    assert_eq!(call(&scaleway, "PATCH", &path, &json!({"name": "b"})).await.0, 200);
}

#[tokio::test]
async fn a_server_cannot_be_deleted_on_its_first_day() {
    let scaleway = scaleway().await;
    let id = scaleway.world().order(NewServer::named("a"));
    let path = format!("{SERVERS}/{id}");
    let (status, error) = call(&scaleway, "DELETE", &path, &Value::Null).await;
    assert_eq!((status, error["type"].as_str()), (412, Some("precondition_failed")));
    scaleway.world().server(&id).unwrap().deletable_at = Timestamp::now();
    assert_eq!(call(&scaleway, "DELETE", &path, &Value::Null).await.0, 204);
    let (status, error) = call(&scaleway, "GET", &path, &Value::Null).await;
    assert_eq!((status, error["type"].as_str()), (404, Some("not_found")));
}

#[tokio::test]
async fn a_wrong_key_and_a_path_that_is_not_simulated_are_refused() {
    let scaleway = scaleway().await;
    assert_eq!(ask(&scaleway, "GET", SERVERS, "wrong", "").await.0, 401);
    let (status, error) = call(&scaleway, "GET", "/instance/v1/zones/fr-par-1/servers", &Value::Null).await;
    assert_eq!((status, error["type"].as_str()), (404, Some("unknown_resource")));
}

#[tokio::test]
async fn faults_happen_as_often_as_they_should_and_a_wrong_one_is_refused() {
    let scaleway = scaleway().await;
    let id = scaleway.world().order(NewServer::named("a"));
    let path = format!("{SERVERS}/{id}");
    let put = async |rules: &str| ask(&scaleway, "PUT", "/simulator/faults", "", rules).await;
    assert_eq!(put("rename cut").await.0, 422);
    assert_eq!(put("get-server 1 throttle 7\nupdate-server 1 hold\nreboot-server 1 cut").await.0, 200);
    assert_eq!(call(&scaleway, "GET", &path, &Value::Null).await.0, 429);
    assert_eq!(call(&scaleway, "GET", &path, &Value::Null).await.0, 200);
    // Held: it is carried out later.
    assert_eq!(call(&scaleway, "PATCH", &path, &json!({"name": "late"})).await.0, 0);
    assert_eq!(call(&scaleway, "PATCH", &path, &json!({"name": "b"})).await.0, 200);
    assert_eq!(call(&scaleway, "POST", "/simulator/held", &Value::Null).await.1["delivered"], 1);
    assert_eq!(scaleway.world().server(&id).unwrap().name, "late");
    // Cut: it is carried out, but not answered.
    assert_eq!(call(&scaleway, "POST", &format!("{path}/reboot"), &json!({})).await.0, 0);
    assert_eq!(scaleway.world().server(&id).unwrap().status, Status::Rebooting);
}

#[tokio::test]
async fn a_mac_behind_a_server_is_reached_at_its_address_until_it_is_installed_anew() {
    let scaleway = scaleway().await;
    let mac = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mac_address = mac.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = mac.accept().await {
            let _ = stream.write_all(b"SSH-2.0").await;
        }
    });
    let id = scaleway.world().order(NewServer::named("a"));
    if let Err(why) = scaleway.attach(&id, mac_address).await {
        // Only root has port 22.
        assert!(why.contains("denied"), "{why}");
        return;
    }
    let ip = scaleway.world().server(&id).unwrap().ip.clone();
    let mut said = String::new();
    let mut stream = TcpStream::connect(format!("{ip}:22")).await.unwrap();
    stream.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "SSH-2.0");
    let (status, _) = call(&scaleway, "POST", &format!("{SERVERS}/{id}/reinstall"), &json!({})).await;
    assert_eq!(status, 200);
    scaleway.world().finish_changes();
    assert_eq!(scaleway.world().server(&id).unwrap().status, Status::Reinstalling);
    scaleway.attach(&id, mac_address).await.unwrap();
    scaleway.world().finish_changes();
    assert_eq!(scaleway.world().server(&id).unwrap().status, Status::Ready);
}
