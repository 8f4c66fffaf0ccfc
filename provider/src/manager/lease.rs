//! Leader election by a Lease: of all providers one acts. Another takes over when the Lease was not renewed for its whole time, by the clock of the one
//! that waits.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease as LeaseObject, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};

/// The name that the Go provider uses, too: the two never act at once.
pub(super) const NAME: &str = "scaleway-applesilicon.infrastructure.cluster.x-k8s.io";
const DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for this long is none any more. It is shorter than the time of the Lease: it stops before another begins.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_secs(2);
const CALL_DEADLINE: Duration = Duration::from_secs(4);

/// A Lease, as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    holder: Option<String>,
    version: Option<String>,
    duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Create,
    Take,
    Wait,
}

/// Whether the Lease can be taken. `unchanged` is for how long it has been as it is.
fn decide(seen: Option<&Seen>, own: &str, unchanged: Duration) -> Decision {
    match seen {
        None => Decision::Create,
        Some(Seen { holder: None, .. }) => Decision::Take,
        Some(Seen { holder: Some(holder), .. }) if holder.is_empty() || holder == own => Decision::Take,
        Some(seen) if unchanged > seen.duration => Decision::Take,
        Some(_) => Decision::Wait,
    }
}

/// The Lease, from the view of one provider.
pub(super) struct Lease {
    api: Api<LeaseObject>,
    own: String,
    held: Option<Held>,
}

/// The Lease of this provider.
struct Held {
    object: LeaseObject,
    /// When the call that renewed it last was begun. The API server wrote it later, so that no other provider counts from an earlier moment.
    renewed: Instant,
}

impl Held {
    fn spec(&self) -> Option<&LeaseSpec> {
        self.object.spec.as_ref()
    }
}

impl Lease {
    pub(super) fn new(client: Client, namespace: &str, own: String) -> Self {
        Self { api: Api::namespaced(client, namespace), own, held: None }
    }

    /// Waits until this provider is the leader.
    pub(super) async fn acquire(&mut self) {
        let mut last: Option<(Seen, Instant)> = None;
        loop {
            match self.try_acquire(&mut last).await {
                Ok(true) => {
                    info!(identity = self.own, "this provider is the leader");
                    return;
                }
                Ok(false) => {}
                Err(problem) => warn!(problem, "the Lease of the leader cannot be read or written"),
            }
            sleep(INTERVAL).await;
        }
    }

    async fn try_acquire(&mut self, last: &mut Option<(Seen, Instant)>) -> Result<bool, String> {
        let object = within(self.api.get_opt(NAME)).await?;
        let seen = object.as_ref().map(seen);
        if let Some(seen) = &seen
            && last.as_ref().is_none_or(|(known, _)| known != seen)
        {
            info!(holder = seen.holder.as_deref().unwrap_or("none"), "the Lease of the leader was seen");
            *last = Some((seen.clone(), Instant::now()));
        }
        let unchanged = last.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        match decide(seen.as_ref(), &self.own, unchanged) {
            Decision::Wait => Ok(false),
            Decision::Create => {
                let object =
                    self.object(ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() }, 0);
                let renewed = Instant::now();
                let object = within(self.api.create(&PostParams::default(), &object)).await?;
                self.held = Some(Held { object, renewed });
                Ok(true)
            }
            Decision::Take => {
                let object = object.unwrap_or_default();
                let changes = object.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0);
                let renewed = Instant::now();
                let object = self.replace(object.metadata, changes.saturating_add(1)).await?;
                self.held = Some(Held { object, renewed });
                Ok(true)
            }
        }
    }

    /// Renews the Lease, and returns when this provider is not the leader any more, with the reason. No call may outlast the deadline: another
    /// provider begins soon after it.
    pub(super) async fn keep(&mut self) -> String {
        loop {
            let Some(held) = &self.held else { return "it was never held".to_owned() };
            match timeout_at(held.renewed + RENEW_DEADLINE, self.renew()).await {
                Ok(Ok(())) => {}
                Ok(Err(holder)) => return format!("{holder} has it"),
                Err(_) => return format!("it was not renewed for {} s", RENEW_DEADLINE.as_secs()),
            }
        }
    }

    /// Tries once to renew the Lease; the error is the provider that has it.
    async fn renew(&mut self) -> Result<(), String> {
        sleep(INTERVAL).await;
        let Some(held) = &self.held else { return Ok(()) };
        let (metadata, last) = (held.object.metadata.clone(), held.renewed);
        let changes = held.spec().and_then(|spec| spec.lease_transitions).unwrap_or(0);
        let renewed = Instant::now();
        match self.replace(metadata, changes).await {
            Ok(object) => self.held = Some(Held { object, renewed }),
            Err(problem) => {
                warn!(problem, "the Lease was not renewed");
                match within(self.api.get(NAME)).await {
                    // The version may be a new one. Whether it is of this renewal is not known.
                    Ok(object) if seen(&object).holder.as_deref() == Some(&self.own) => {
                        self.held = Some(Held { object, renewed: last });
                    }
                    Ok(object) => return Err(seen(&object).holder.unwrap_or_default()),
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Gives the Lease up, so that another provider need not wait for its end.
    pub(super) async fn give_up(&mut self) {
        if let Some(Held { object: mut held, .. }) = self.held.take() {
            if let Some(spec) = &mut held.spec {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
            }
            if let Err(problem) = within(self.api.replace(NAME, &PostParams::default(), &held)).await {
                warn!(problem, "the Lease was not given up; another provider waits for its end");
            }
        }
    }

    async fn replace(&self, metadata: ObjectMeta, changes: i32) -> Result<LeaseObject, String> {
        let object = self.object(metadata, changes);
        within(self.api.replace(NAME, &PostParams::default(), &object)).await
    }

    fn object(&self, metadata: ObjectMeta, changes: i32) -> LeaseObject {
        let now = MicroTime(Timestamp::now());
        let acquired = self.held.as_ref().and_then(|held| held.spec()?.acquire_time.clone());
        LeaseObject {
            metadata: ObjectMeta { managed_fields: None, ..metadata },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.own.clone()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: acquired.or_else(|| Some(now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(changes),
                ..LeaseSpec::default()
            }),
        }
    }
}

fn seen(object: &LeaseObject) -> Seen {
    let spec = object.spec.as_ref();
    let seconds =
        spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    Seen {
        holder: spec.and_then(|spec| spec.holder_identity.clone()),
        version: object.metadata.resource_version.clone(),
        duration: seconds.map_or(DURATION, Duration::from_secs),
    }
}

async fn within<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match timeout(CALL_DEADLINE, call).await {
        Ok(result) => result.map_err(|error| crate::error_chain::chain(&error)),
        Err(_) => Err("the API server did not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server that answers the first renewals after a while, and none of the calls that follow.
    fn api_server(renewals: usize, pause: Duration) -> Client {
        let mut left = renewals + 1;
        let answer = move |request: Request<Body>| {
            let answers = request.method() == Method::PUT && left > 0;
            left -= usize::from(answers);
            async move {
                if !answers {
                    std::future::pending::<()>().await;
                }
                sleep(pause).await;
                let lease = json!({ "metadata": { "name": NAME }, "spec": { "holderIdentity": "me" } });
                Ok::<_, Infallible>(Response::new(Body::from(lease.to_string().into_bytes())))
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// The worst case: an answer that comes just in time, and then calls that hang. Another provider counts from the write, which may have been at
    /// the very beginning of the call.
    #[tokio::test(start_paused = true)]
    async fn a_leader_ends_well_before_another_begins_however_long_calls_take() {
        let slow = CALL_DEADLINE.saturating_sub(Duration::from_millis(1));
        for renewals in 0..3 {
            let mut lease = Lease::new(api_server(renewals, slow), "default", "me".to_owned());
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let mut last_call = Instant::now();
            let object = lease.replace(metadata, 0).await.unwrap();
            lease.held = Some(Held { object, renewed: last_call });
            for _ in 0..renewals {
                last_call = Instant::now() + INTERVAL;
                lease.renew().await.unwrap();
            }
            let lost = lease.keep().await;
            assert!(lost.contains("not renewed"), "{lost}");
            assert!(last_call.elapsed() <= RENEW_DEADLINE, "{:?} after {renewals}", last_call.elapsed());
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_or_has_not_changed_for_its_whole_time() {
        let held = |holder: Option<&str>| {
            let holder = holder.map(str::to_owned);
            Some(Seen { holder, version: Some("1".to_owned()), duration: DURATION })
        };
        let short = DURATION;
        let long = DURATION + Duration::from_millis(1);
        for (what, seen, unchanged, wanted) in [
            ("none", None, short, Decision::Create),
            ("a new one", held(None), short, Decision::Take),
            ("one that was given up", held(Some("")), short, Decision::Take),
            ("its own", held(Some("me")), short, Decision::Take),
            ("another's", held(Some("you")), short, Decision::Wait),
            ("another's that has ended", held(Some("you")), long, Decision::Take),
        ] {
            assert_eq!(decide(seen.as_ref(), "me", unchanged), wanted, "{what}");
        }
        assert!(RENEW_DEADLINE < DURATION);
    }
}
