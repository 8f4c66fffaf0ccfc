use std::collections::VecDeque;
use std::sync::Mutex;

use super::spec::{Action, ProbeSpec};
use super::*;

fn spec(failure_threshold: u32) -> ProbeSpec {
    ProbeSpec::example(1, failure_threshold)
}

fn target() -> Target {
    Target {
        reach: Reach { guest: "127.0.0.1".parse().unwrap(), local: false },
        guest: crate::guest::Guest::new("/nowhere".as_ref()),
        enter: Vec::new(),
        probe: Vec::new(),
    }
}

fn board(probes: &Probes) -> Arc<watch::Sender<ProbeState>> {
    Arc::new(watch::channel(ProbeState::new(probes, None)).0)
}

/// Answers from a script, and then passes; counts how often it was asked.
struct Script(Mutex<VecDeque<ProbeResult>>, Mutex<u32>);

impl Script {
    fn new(script: impl IntoIterator<Item = ProbeResult>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(script.into_iter().collect()), Mutex::new(0)))
    }

    fn next(&self) -> ProbeResult {
        *self.1.lock().unwrap() += 1;
        self.0.lock().unwrap().pop_front().unwrap_or(ProbeResult::Passed)
    }

    fn asked(&self) -> u32 {
        *self.1.lock().unwrap()
    }
}

fn run(
    kind: ProbeKind,
    judge: &Arc<watch::Sender<ProbeState>>,
    script: &Arc<Script>,
) -> tokio::task::JoinHandle<()> {
    let script = script.clone();
    let period = Duration::from_millis(1);
    tokio::spawn(attend(kind, Duration::ZERO, period, judge.clone(), async move || script.next()))
}

#[tokio::test]
async fn liveness_ends_with_the_failure_that_counts() {
    let judge = board(&Probes { liveness: Some(spec(2)), ..Probes::default() });
    let failed = || ProbeResult::Failed("no".into());
    let errored = || ProbeResult::Errored("broken".into());
    let script = Script::new([failed(), ProbeResult::Passed, failed(), errored(), failed(), failed()]);
    run(ProbeKind::Liveness, &judge, &script).await.unwrap();
    assert_eq!(judge.borrow().health.failed, Some(crate::state::StopCause::FailedLiveness));
    assert_eq!(script.asked(), 5, "a broken probe counts for nothing, and nothing is asked after the end");
}

#[tokio::test]
async fn other_probes_wait_for_startup_and_startup_ends_with_its_success() {
    let judge = board(&Probes { startup: Some(spec(1)), readiness: Some(spec(1)), ..Probes::default() });
    let (startup, readiness) = (Script::new([]), Script::new([]));
    let waiting = run(ProbeKind::Readiness, &judge, &readiness);
    let mut seen = judge.subscribe();
    tokio::task::yield_now().await;
    assert_eq!(readiness.asked(), 0);
    run(ProbeKind::Startup, &judge, &startup).await.unwrap();
    assert_eq!(startup.asked(), 1);
    seen.wait_for(|judge| judge.health.ready).await.unwrap();
    waiting.abort();
}

#[tokio::test]
async fn a_pod_that_is_deleted_is_still_probed_for_readiness() {
    let judge = board(&Probes { liveness: Some(spec(1)), readiness: Some(spec(1)), ..Probes::default() });
    judge.send_if_modified(ProbeState::leave);
    let (liveness, readiness) = (Script::new([ProbeResult::Failed("no".into())]), Script::new([]));
    run(ProbeKind::Liveness, &judge, &liveness).await.unwrap();
    assert_eq!(liveness.asked(), 0);
    let mut seen = judge.subscribe();
    let asking = run(ProbeKind::Readiness, &judge, &readiness);
    seen.wait_for(|judge| judge.health.ready).await.unwrap();
    asking.abort();
}

#[tokio::test]
async fn a_prober_reports_failures_as_events() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let at = |port| ProbeSpec { action: Ok(Action::TcpSocket { host: None, port }), ..spec(1) };
    let bad = ProbeSpec { action: Err(spec::BadAction::UnknownPort("web".into())), ..spec(1) };
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let tell: Tell = Arc::new(move |reason, note| _ = sender.send(format!("{reason}: {note}")));
    let (counter, mut counted) = tokio::sync::mpsc::unbounded_channel();
    let count: Count = Arc::new(move |kind, result| _ = counter.send(format!("{kind} {result}")));
    let probes = Probes { startup: Some(at(port)), liveness: Some(bad), readiness: None };
    let mut prober = Prober::start(probes, None, Duration::ZERO, target(), &tell, &count);
    while !prober.health().started {
        prober.changed().await;
    }
    let words = "Unhealthy: Liveness probe errored and resulted in unknown state: port web not found";
    assert_eq!(told.recv().await.unwrap(), words);
    assert_eq!(counted.recv().await.unwrap(), "Startup successful");
    assert_eq!(counted.recv().await.unwrap(), "Liveness unknown");
    drop(prober);
    drop(listener);

    let probes = Probes { readiness: Some(at(port)), liveness: Some(at(port)), startup: None };
    let before = Some(ContainerHealth { started: true, ready: true, failed: None });
    let mut prober = Prober::start(probes, before, Duration::ZERO, target(), &tell, &count);
    assert!(prober.health().ready, "until a probe says otherwise");
    while prober.health().ready || prober.health().failed.is_none() {
        prober.changed().await;
    }
}

#[tokio::test]
async fn a_guest_agent_that_is_not_there_is_a_failure() {
    let exec = ProbeSpec { action: Ok(Action::Exec(vec!["true".into()])), ..spec(1) };
    match find(&exec, &target()).await {
        ProbeResult::Failed(why) => assert!(why.starts_with("the guest agent does not answer"), "{why}"),
        other => panic!("{other:?}"),
    }
}
