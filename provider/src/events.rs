//! What happens with a machine, as Events of Kubernetes.

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::events::EventType;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use tracing::{debug, info};

use crate::apiserver::call;
use crate::crd::ScalewayAppleSiliconMachine as Machine;

/// What an Event may hold.
const LONGEST_NOTE: usize = 1000;

/// Tells what happens.
#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    instance: String,
}

impl Events {
    pub(crate) fn new(client: Client, instance: String) -> Self {
        Self { client, instance }
    }

    /// Tells it. An Event that is lost holds nothing up: the status has the same.
    pub(crate) async fn say(&self, machine: &Machine, type_: EventType, reason: &str, words: &str) {
        let name = machine.name_any();
        info!(machine = name, reason, words, "event");
        let now = Timestamp::now();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: machine.namespace(),
                ..ObjectMeta::default()
            },
            action: Some(reason.to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(words.chars().take(LONGEST_NOTE).collect()),
            reason: Some(reason.to_owned()),
            regarding: Some(machine.object_ref(&())),
            reporting_controller: Some("tart-provider".to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(match type_ {
                EventType::Normal => "Normal".to_owned(),
                EventType::Warning => "Warning".to_owned(),
            }),
            ..Event::default()
        };
        let api = Api::<Event>::namespaced(self.client.clone(), &machine.namespace().unwrap_or_default());
        if let Err(error) = call("create an Event", api.create(&PostParams::default(), &event)).await {
            debug!(%error, "an Event was lost");
        }
    }
}
