//! Controllers of all kinds (`Job`, `DaemonSet`, `Deployment`, `StatefulSet`, `CronJob`) run macOS Pods as they run Pods on any other Node.

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodBuilder, PodView, Scene};

/// A template of Pods with the label `app: <app>`.
fn template(app: &str, pod: PodBuilder<'_>) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": pod.json()["spec"]})
}

fn job(pod: PodBuilder<'_>, spec: &Value) -> Value {
    let name = pod.name().to_owned();
    let mut job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template(&name, pod)},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        job["spec"][key] = value.clone();
    }
    job
}

/// Waits until a Job has come to an end, which is this condition, and returns its reason.
async fn ended(scene: &Scene, name: &str, condition: &str) -> Result<(Job, String)> {
    let jobs = scene.api::<Job>().await?;
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
async fn job_retries_up_to_its_back_off_limit() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("job").await?;
    scene.apply(&job(scene.pod("hopeless").sh("exit 3"), &json!({"backoffLimit": 1}))).await?;
    scene.apply(&job(scene.pod("good").sh("exit 0"), &json!({"completions": 2}))).await?;
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
async fn job_counts_container_restarts() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("in-place").await?;
    let pod = scene.pod("hopeless").sh("exit 3").restart_policy("OnFailure");
    scene.apply(&job(pod, &json!({"backoffLimit": 1}))).await?;
    let (_, reason) = ended(&scene, "hopeless", "Failed").await?;
    assert_eq!(reason, "BackoffLimitExceeded");
    // The Job deletes its Pod, and the agent what the Pod had on the Mac.
    scene.nothing_left().await
}

#[tokio::test]
async fn daemon_set_for_linux_is_refused_without_a_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("daemons").await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    let pod = scene
        .pod("")
        .image("registry.k8s.io/kube-proxy:v1")
        .restart_policy("Always")
        .spec(json!({"hostNetwork": true, "tolerations": [{"operator": "Exists"}]}));
    scene
        .apply(&json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "proxy"},
            "spec": {
                "selector": {"matchLabels": {"app": "proxy"}},
                "template": template("proxy", pod),
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
    // The controller tries again, as it does on any Node.
    wait::eventually("two refusals", DEADLINE, async || {
        let (pods, words) = refused().await?;
        ensure!(pods >= 2 && words.contains("spec."), "{words}");
        Ok(())
    })
    .await?;
    // Other Pods run, and the agent has called tart for none of the refused Pods.
    scene.pod("mine").command(["true"]).create_until("Succeeded").await?;
    assert_eq!((scene.count_calls("run")?, scene.count_calls("pull")?), (1, 1), "{:?}", scene.tart_calls()?);
    let pods = std::fs::read_dir(scene.agent.state_dir().join("pods"))?.count();
    assert_eq!(pods, 1, "refused Pods have no records");
    Ok(())
}

#[tokio::test]
async fn job_pod_failure_policy_sees_exit_codes() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("policy").await?;
    let give_up = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    let policy = json!({"backoffLimit": 5, "podFailurePolicy": {"rules": [give_up]}});
    scene.apply(&job(scene.pod("final").sh("exit 42"), &policy)).await?;
    let (job, reason) = ended(&scene, "final", "Failed").await?;
    assert_eq!(reason, "PodFailurePolicy");
    assert_eq!(job.status.and_then(|status| status.failed), Some(1));
    Ok(())
}

#[tokio::test]
async fn job_pod_failure_policy_sees_evictions() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("evicted").await?;
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let policy = json!({"rules": [{"action": "FailJob", "onPodConditions": disrupted}]});
    let script = "dd if=/dev/zero of=/private/tmp/cache/file bs=1024 count=4096; sleep 1000";
    let cache = json!({"emptyDir": {"sizeLimit": "1Mi"}});
    let pod = scene.pod("greedy").sh(script).volume("cache", cache).mount("cache", "/private/tmp/cache");
    scene.apply(&job(pod, &json!({"backoffLimit": 5, "podFailurePolicy": policy}))).await?;
    let (job, reason) = ended(&scene, "greedy", "Failed").await?;
    assert_eq!(reason, "PodFailurePolicy");
    assert_eq!(job.status.and_then(|status| status.failed), Some(1));
    Ok(())
}

#[tokio::test]
async fn deployment_rolls_its_pods_over() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("deploy").await?;
    let deployment = |release: &str| {
        let pod = scene.pod("").sh("while :; do sleep 1; done").env("RELEASE", release);
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "web"}},
                // A Mac has two places, and both are taken.
                "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                "template": template("web", pod.restart_policy("Always").grace(5)),
            },
        })
    };
    let rolled_out = async || {
        let kubectl = scene.kubectl.clone().deadline(DEADLINE);
        let status = kubectl.run(["rollout", "status", "deployment/web"]).await;
        status.with_context(|| format!("the agent says: {}", scene.agent_log()))
    };
    scene.apply(&deployment("one")).await?;
    rolled_out().await?;
    let old: Vec<_> = pods_of(&scene, "web").await?.iter().map(ResourceExt::name_any).collect();
    assert_eq!(old.len(), 2);

    scene.apply(&deployment("two")).await?;
    rolled_out().await?;
    for pod in &old {
        scene.until_gone(pod).await?;
    }
    let new = pods_of(&scene, "web").await?;
    assert_eq!(new.len(), 2);
    let mut vms = new.iter().map(PodView::vm).collect::<Result<Vec<_>>>()?;
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
async fn stateful_set_keeps_its_order_and_names() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("stateful").await?;
    scene
        .apply(&json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db"},
            "spec": {
                "replicas": 2,
                "serviceName": "db",
                "selector": {"matchLabels": {"app": "db"}},
                "template": template("db", scene.pod("").restart_policy("Always").grace(5)),
            },
        }))
        .await?;
    let sets = scene.api::<StatefulSet>().await?;
    let all_ready = |set: &StatefulSet| {
        let status = set.status.as_ref();
        status.is_some_and(|status| status.ready_replicas == Some(2) && status.replicas == 2)
    };
    let ready = async || wait::until(&sets, "db", "ready", DEADLINE, all_ready).await;
    ready().await.with_context(|| format!("the agent says: {}", scene.agent_log()))?;
    let (first, second) = (scene.pods.get("db-0").await?, scene.pods.get("db-1").await?);
    let since_ready = |pod: &Pod| pod.ready_since().filter(|_| pod.is_ready());
    let created = second.metadata.creation_timestamp.as_ref().map(|time| time.0);
    ensure!(
        since_ready(&first).is_some_and(|ready| Some(ready) <= created),
        "the second was made before the first was ready"
    );

    scene.delete("db-0").await?;
    let again = scene
        .until("db-0", "another Pod, and ready", |pod| pod.uid() != first.uid() && since_ready(pod).is_some())
        .await?;
    ready().await?;
    assert_ne!(again.vm()?, first.vm()?, "{:?}", again.uid());
    assert_eq!(scene.pods.get("db-1").await?.uid(), second.uid(), "the other one is left alone");

    // An update and a scale-down begin with the last Pod.
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
    scene.until_gone("db-1").await?;
    assert_eq!(scene.pods.get("db-0").await?.uid(), first.uid());
    Ok(())
}

#[tokio::test]
async fn cron_job_creates_jobs() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("cron").await?;
    let job = job(scene.pod("nightly").sh("exit 0"), &json!({}));
    scene
        .apply(&json!({
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "nightly"},
            "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job["spec"]}},
        }))
        .await?;
    scene.kubectl.run(["create", "job", "now", "--from=cronjob/nightly"]).await?;
    ended(&scene, "now", "Complete").await?;
    let jobs = scene.api::<Job>().await?;
    let due = wait::eventually("a Job of the schedule", DEADLINE, async || {
        let all = jobs.list(&ListParams::default()).await?;
        let due = all.items.into_iter().map(|job| job.name_any()).find(|name| name != "now");
        due.context("none")
    })
    .await?;
    ended(&scene, &due, "Complete").await?;
    Ok(())
}
