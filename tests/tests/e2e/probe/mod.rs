//! Probes: whether a container has started, is ready, and has to be restarted, with the kubelet's rules and words.

mod endpoints;
mod handler;
mod result;

use anyhow::Result;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::programs;

use crate::scene::{PodBuilder, Scene};

/// An image with the test's own server in it.
const SERVER: &str = "registry.test/macos/server:15";

/// A scene whose Mac has the server's image.
async fn scene(name: &str) -> Result<(Scene, RunningAgent)> {
    let scene = Scene::new(name).await?;
    let directory = scene.mac.add_image(SERVER, &json!({}))?.join("rootfs/usr/local/bin");
    std::fs::create_dir_all(&directory)?;
    std::fs::copy(programs::find("guest-server")?, directory.join("guest-server"))?;
    let agent = scene.start(&scene.agent).await?;
    Ok((scene, agent))
}

/// A Pod that runs the server, with these files to start with.
fn server<'a>(scene: &'a Scene, name: &str, files: &[&str]) -> PodBuilder<'a> {
    let command = [&["/usr/local/bin/guest-server"], files].concat();
    let pod = scene.pod(name).image(SERVER).command(command);
    let pod = pod.container(json!({"ports": [{"name": "web", "containerPort": 8080}]}));
    if !files.contains(&"up") {
        return pod;
    }
    // The probes of these tests fail at once, so none may come before the server listens.
    let listens = "until (: <\"/dev/tcp/$TART_SIM_ADDRESS/8080\") 2>/dev/null; do sleep 0.05; done";
    pod.post_start(json!({"exec": {"command": ["/bin/bash", "-c", listens]}}))
}

/// The same, with a server that ignores SIGTERM.
fn stubborn<'a>(scene: &'a Scene, name: &str, files: &[&str]) -> PodBuilder<'a> {
    let script = "trap '' TERM; exec /usr/local/bin/guest-server \"$@\"";
    server(scene, name, files).command([&["/bin/sh", "-c", script, "sh"], files].concat())
}

/// A probe that is made every second and whose first failure counts; `fields` come on top.
fn quick(fields: &Value) -> Value {
    let mut probe = json!({"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 20});
    if let (Some(probe), Some(fields)) = (probe.as_object_mut(), fields.as_object()) {
        probe.extend(fields.clone());
    }
    probe
}

fn http(path: &str) -> Value {
    quick(&json!({"httpGet": {"path": path, "port": "web"}}))
}
