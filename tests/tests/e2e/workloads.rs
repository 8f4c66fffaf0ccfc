//! What people really create: controllers of all kinds run macOS Pods as they run Pods on any other Node.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

/// A Pod template for the scene's Node, whose Pods are labelled `app: <app>`.
fn template(scene: &Scene, app: &str, container: &Value, spec: &Value) -> Value {
    let pod = scene.pod("", container, spec);
    json!({"metadata": {"labels": {"app": app}}, "spec": pod["spec"]})
}

fn job(scene: &Scene, name: &str, script: &str, spec: &Value) -> Value {
    let container = json!({"command": ["/bin/sh", "-c", script]});
    let mut job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template(scene, name, &container, &json!({}))},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        job["spec"][key] = value.clone();
    }
    job
}

/// Waits until a Job has come to an end, which is this condition, and returns its reason.
async fn ended(scene: &Scene, name: &str, condition: &str) -> Result<(Job, String)> {
    let jobs: Api<Job> = Api::namespaced(scene.control_plane.client().await?, scene.namespace());
    let holds = |job: &Job| {
        let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut met = conditions.filter(|one| one.type_ == condition && one.status == "True");
        met.next().map(|one| one.reason.clone().unwrap_or_default())
    };
    let job = wait::until(&jobs, name, condition, DEADLINE, |job| holds(job).is_some()).await;
    let job = job.with_context(|| format!("the agent says: {}", scene.agent_log()))?;
    let reason = holds(&job).unwrap_or_default();
    Ok((job, reason))
}

async fn pods_of(scene: &Scene, app: &str) -> Result<Vec<Pod>> {
    Ok(scene.pods.list(&ListParams::default().labels(&format!("app={app}"))).await?.items)
}

#[tokio::test]
async fn a_job_is_tried_again_and_gives_up_at_its_limit() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("job").await?;
    scene.create(&job(&scene, "hopeless", "exit 3", &json!({"backoffLimit": 1}))).await?;
    scene.create(&job(&scene, "good", "exit 0", &json!({"completions": 2}))).await?;
    let (job, reason) = ended(&scene, "hopeless", "Failed").await?;
    assert_eq!(reason, "BackoffLimitExceeded");
    assert_eq!(job.status.and_then(|status| status.failed), Some(2));
    let (job, _) = ended(&scene, "good", "Complete").await?;
    assert_eq!(job.status.and_then(|status| status.succeeded), Some(2));
    scene.no_vms().await?;
    scene.kubectl.run(["delete", "job", "--all"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_job_counts_restarts_in_place() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("in-place").await?;
    let mut job = job(&scene, "hopeless", "exit 3", &json!({"backoffLimit": 1}));
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure");
    scene.create(&job).await?;
    let (_, reason) = ended(&scene, "hopeless", "Failed").await?;
    assert_eq!(reason, "BackoffLimitExceeded");
    // Its Pod goes, and so does whatever it had on the Mac.
    scene.nothing_left().await
}

#[tokio::test]
async fn a_daemon_set_that_is_made_for_linux_is_refused_cheaply() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("daemons").await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    let everywhere =
        json!({"hostNetwork": true, "tolerations": [{"operator": "Exists"}], "restartPolicy": "Always"});
    let container = json!({"image": "registry.k8s.io/kube-proxy:v1"});
    scene
        .create(&json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "proxy"},
            "spec": {
                "selector": {"matchLabels": {"app": "proxy"}},
                "template": template(&scene, "proxy", &container, &everywhere),
            },
        }))
        .await?;
    let refused = async || {
        let events = ["get", "events", "--field-selector", "reason=UnsupportedPod", "--output", "json"];
        let events: Value = serde_json::from_str(&scene.kubectl.run(events).await?)?;
        let about = |event: &Value| event["involvedObject"]["name"].as_str().map(str::to_owned);
        let pods: HashSet<_> = events["items"].as_array().into_iter().flatten().filter_map(about).collect();
        let words = events.to_string();
        anyhow::Ok((pods.len(), words))
    };
    // The controller tries again, as it does everywhere.
    wait::eventually("two refusals", DEADLINE, async || {
        let (pods, words) = refused().await?;
        ensure!(pods >= 2 && words.contains("spec."), "{words}");
        Ok(())
    })
    .await?;
    // Nobody else is held up, and nothing of it came as far as tart.
    scene.create(&scene.pod("mine", &json!({"command": ["true"]}), &json!({}))).await?;
    scene.phase("mine", "Succeeded").await?;
    let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
    assert_eq!(calls.lines().filter(|call| *call == "run").count(), 1, "{calls}");
    assert_eq!(calls.lines().filter(|call| *call == "pull").count(), 1, "{calls}");
    let pods = std::fs::read_dir(scene.agent.state_dir().join("pods"))?.count();
    assert_eq!(pods, 1, "what is refused is not written down");
    Ok(())
}

#[tokio::test]
async fn a_job_knows_its_exit_codes() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("policy").await?;
    let give_up = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    let policy = json!({"backoffLimit": 5, "podFailurePolicy": {"rules": [give_up]}});
    scene.create(&job(&scene, "final", "exit 42", &policy)).await?;
    let (job, reason) = ended(&scene, "final", "Failed").await?;
    assert_eq!(reason, "PodFailurePolicy");
    assert_eq!(job.status.and_then(|status| status.failed), Some(1));
    Ok(())
}

#[tokio::test]
async fn a_job_knows_that_its_pod_was_evicted() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("evicted").await?;
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let policy = json!({"rules": [{"action": "FailJob", "onPodConditions": disrupted}]});
    let script = "dd if=/dev/zero of=/private/tmp/cache/file bs=1024 count=4096; sleep 1000";
    let mut job = job(&scene, "greedy", script, &json!({"backoffLimit": 5, "podFailurePolicy": policy}));
    let pod = &mut job["spec"]["template"]["spec"];
    pod["volumes"] = json!([{"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}}]);
    pod["containers"][0]["volumeMounts"] = json!([{"name": "cache", "mountPath": "/private/tmp/cache"}]);
    scene.create(&job).await?;
    let (job, reason) = ended(&scene, "greedy", "Failed").await?;
    assert_eq!(reason, "PodFailurePolicy");
    assert_eq!(job.status.and_then(|status| status.failed), Some(1));
    Ok(())
}

#[tokio::test]
async fn a_deployment_rolls_its_pods_over() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("deploy").await?;
    let always = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5});
    let deployment = |release: &str| {
        let container = json!({
            "command": ["/bin/sh", "-c", "while :; do sleep 1; done"],
            "env": [{"name": "RELEASE", "value": release}],
        });
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "web"}},
                // A Mac has two places, and both are taken.
                "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                "template": template(&scene, "web", &container, &always),
            },
        })
    };
    let rolled_out = async || {
        let kubectl = scene.kubectl.clone().deadline(DEADLINE);
        let status = kubectl.run(["rollout", "status", "deployment/web"]).await;
        status.with_context(|| format!("the agent says: {}", scene.agent_log()))
    };
    scene.create(&deployment("one")).await?;
    rolled_out().await?;
    let old: Vec<_> = pods_of(&scene, "web").await?.iter().map(ResourceExt::name_any).collect();
    assert_eq!(old.len(), 2);

    scene.create(&deployment("two")).await?;
    rolled_out().await?;
    for pod in &old {
        wait::until_gone(&scene.pods, pod, DEADLINE).await?;
    }
    let new = pods_of(&scene, "web").await?;
    assert_eq!(new.len(), 2);
    let mut vms = new.iter().map(Scene::vm_of).collect::<Result<Vec<_>>>()?;
    let mut running = scene.running_vms().await?;
    vms.sort();
    running.sort();
    assert_eq!(vms, running, "nothing else runs");
    for pod in &new {
        let env = pod.spec.as_ref().and_then(|spec| spec.containers[0].env.clone()).unwrap_or_default();
        assert_eq!(env[0].value.as_deref(), Some("two"));
    }
    scene.kubectl.run(["delete", "deployment", "web"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_stateful_set_keeps_its_order_and_its_names() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("stateful").await?;
    let always = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 5});
    scene
        .create(&json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db"},
            "spec": {
                "replicas": 2,
                "serviceName": "db",
                "selector": {"matchLabels": {"app": "db"}},
                "template": template(&scene, "db", &json!({}), &always),
            },
        }))
        .await?;
    let sets: Api<StatefulSet> = Api::namespaced(scene.control_plane.client().await?, scene.namespace());
    let all_ready = |set: &StatefulSet| {
        let status = set.status.as_ref();
        status.is_some_and(|status| status.ready_replicas == Some(2) && status.replicas == 2)
    };
    let ready = async || wait::until(&sets, "db", "ready", DEADLINE, all_ready).await;
    ready().await.with_context(|| format!("the agent says: {}", scene.agent_log()))?;
    let (first, second) = (scene.pods.get("db-0").await?, scene.pods.get("db-1").await?);
    let since_ready = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut ready = conditions.filter(|one| one.type_ == "Ready" && one.status == "True");
        ready.next().and_then(|one| one.last_transition_time.clone()).map(|time| time.0)
    };
    let created = second.metadata.creation_timestamp.as_ref().map(|time| time.0);
    ensure!(
        since_ready(&first).is_some_and(|ready| Some(ready) <= created),
        "the second was made before the first was ready"
    );

    scene.kubectl.run(["delete", "pod", "db-0"]).await?;
    let again = wait::until(&scene.pods, "db-0", "another Pod, and ready", DEADLINE, |pod| {
        pod.uid() != first.uid() && since_ready(pod).is_some()
    })
    .await?;
    ready().await?;
    assert_ne!(Scene::vm_of(&again)?, Scene::vm_of(&first)?, "{:?}", again.uid());
    assert_eq!(scene.pods.get("db-1").await?.uid(), second.uid(), "the other one is left alone");

    // An update begins with the last one, and so does the way down.
    let template = r#"{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}"#;
    scene.kubectl.run(["patch", "statefulset", "db", "--type=merge", "--patch", template]).await?;
    let patient = scene.kubectl.clone().deadline(DEADLINE);
    patient.run(["rollout", "status", "statefulset/db"]).await?;
    let (first, second) = (scene.pods.get("db-0").await?, scene.pods.get("db-1").await?);
    let version = |pod: &Pod| pod.annotations().get("version").cloned();
    assert_eq!((version(&first).as_deref(), version(&second).as_deref()), (Some("2"), Some("2")));
    let created = first.metadata.creation_timestamp.as_ref().map(|time| time.0);
    ensure!(
        since_ready(&second).is_some_and(|ready| Some(ready) <= created),
        "the first was replaced before the second was ready"
    );
    scene.kubectl.run(["scale", "statefulset", "db", "--replicas=1"]).await?;
    wait::until_gone(&scene.pods, "db-1", DEADLINE).await?;
    assert_eq!(scene.pods.get("db-0").await?.uid(), first.uid());
    Ok(())
}

#[tokio::test]
async fn a_cron_job_spawns_jobs() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("cron").await?;
    let job = job(&scene, "nightly", "exit 0", &json!({}));
    scene
        .create(&json!({
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "nightly"},
            "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job["spec"]}},
        }))
        .await?;
    scene.kubectl.run(["create", "job", "now", "--from=cronjob/nightly"]).await?;
    ended(&scene, "now", "Complete").await?;
    let jobs: Api<Job> = Api::namespaced(scene.control_plane.client().await?, scene.namespace());
    let due = wait::eventually("a Job that its time has come for", DEADLINE, async || {
        let all = jobs.list(&ListParams::default()).await?;
        let due = all.items.into_iter().map(|job| job.name_any()).find(|name| name != "now");
        due.context("none")
    })
    .await?;
    ended(&scene, &due, "Complete").await?;
    Ok(())
}
