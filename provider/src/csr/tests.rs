//! Passes over requests, with an API server that takes every answer.

use std::convert::Infallible;

use http::{Request as HttpRequest, Response};
use kube::client::Body;
use kube::runtime::reflector::{self, store::Writer};
use kube::runtime::watcher::Event;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::Value;
use tokio::sync::mpsc;

use super::*;

/// The calls that the API server gets: path and body.
type Calls = mpsc::UnboundedReceiver<(String, Value)>;

fn approver() -> (Approver, Writer<Machine>, Calls) {
    let (called, calls) = mpsc::unbounded_channel();
    let answer = move |request: HttpRequest<Body>| {
        let called = called.clone();
        async move {
            let path = request.uri().path().to_owned();
            let body: Value =
                serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap()).unwrap();
            let mut answer = request_of("mac", "mac");
            // What is posted is an Event.
            if path.ends_with("/events") {
                answer = body.clone();
            }
            called.send((path, body)).unwrap();
            Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
        }
    };
    let client = Client::new(tower::service_fn(answer), "default");
    let (machines, writer) = reflector::store();
    let events = Events::new(client.clone(), "provider".to_owned());
    (Approver { client, machines, has_tailnet: false, events }, writer, calls)
}

fn fill(writer: &mut Writer<Machine>) {
    let machine = serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "ScalewayAppleSiliconMachine",
        "metadata": { "name": "mac", "namespace": "default" }, "spec": {},
        "status": { "addresses": [{ "type": "ExternalIP", "address": "10.0.0.1" }] },
    }));
    for event in [Event::Init, Event::InitApply(machine.unwrap()), Event::InitDone] {
        writer.apply_watcher_event(&event);
    }
}

/// A Node asks for a certificate to serve under a name.
fn request_of(node: &str, name: &str) -> Value {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": "csr-1" },
        "spec": {
            "request": k8s_openapi::ByteString(pem.into_bytes()), "signerName": SERVING, "username": format!("system:node:{node}"),
            "usages": ["digital signature", "server auth"],
        },
    })
}

fn read(request: Value) -> CertificateSigningRequest {
    serde_json::from_value(request).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_before_the_machines_are_known_is_answered() {
    let (approver, mut writer, mut calls) = approver();
    let request = read(request_of("mac", "mac"));
    let later = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        fill(&mut writer);
    };
    let (action, ()) = tokio::join!(approver.reconcile(&request), later);
    assert_eq!(action.unwrap(), Action::await_change());
    let (path, body) = calls.try_recv().unwrap();
    assert!(path.ends_with("/csr-1/approval"), "{path}");
    assert_eq!(body["status"]["conditions"][0]["type"], "Approved");
}

#[tokio::test(start_paused = true)]
async fn a_request_is_looked_at_again_while_the_machines_are_not_known() {
    let (approver, _writer, mut calls) = approver();
    let action = approver.reconcile(&read(request_of("mac", "mac"))).await.unwrap();
    assert_eq!(action, Action::requeue(UNKNOWN_PAUSE));
    assert!(calls.try_recv().is_err());
}

#[tokio::test]
async fn a_request_of_a_node_without_a_machine_is_looked_at_again_and_any_other_is_not() {
    let (approver, mut writer, mut calls) = approver();
    fill(&mut writer);
    let action = approver.reconcile(&read(request_of("other", "other"))).await.unwrap();
    assert_eq!(action, Action::requeue(UNKNOWN_PAUSE));
    let mut human = request_of("mac", "mac");
    human["spec"]["username"] = json!("jane");
    assert_eq!(approver.reconcile(&read(human)).await.unwrap(), Action::await_change());
    assert!(calls.try_recv().is_err());
}

#[tokio::test]
async fn a_request_that_is_denied_is_an_event_of_its_machine() {
    let (approver, mut writer, mut calls) = approver();
    fill(&mut writer);
    approver.reconcile(&read(request_of("mac", "kubernetes.default.svc"))).await.unwrap();
    let (_, body) = calls.try_recv().unwrap();
    assert_eq!(body["status"]["conditions"][0]["type"], "Denied");
    let (path, event) = calls.try_recv().unwrap();
    assert!(path.ends_with("/namespaces/default/events"), "{path}");
    assert_eq!((&event["reason"], &event["regarding"]["name"]), (&json!("CertificateDenied"), &json!("mac")));
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("csr-1") && note.contains("kubernetes.default.svc"), "{note}");
}
