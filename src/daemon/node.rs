//! A running node, as its listeners and its admin socket see it from any thread.

use std::{sync::Arc, time::Duration};

use ops::config::Config;
use replication::{Event, NodeId, Refusal, Verb};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::{
    shard::Shard,
    volume::{Control, Report},
};

/// A running node as its listeners and its admin socket see it, from any thread.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it was started with.
    pub config: Arc<Config>,
    /// Its name.
    pub name: String,
    /// Its resources, in the order of the configuration.
    pub resources: Vec<Resource>,
    /// Every event of every resource: the resource's place and what happened.
    pub events: broadcast::Sender<(usize, Event)>,
}

/// A running resource, from any thread.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// Its place in the configuration, by which its shard knows it.
    pub place: usize,
    /// Where it runs.
    pub shard: Shard,
    /// Where its task takes requests.
    pub control: mpsc::Sender<Control>,
}

impl Resource {
    /// Does what an operator asks, and returns once it is true.
    ///
    /// # Errors
    /// When the resource refuses, or has stopped.
    pub async fn operate(&self, verb: Verb) -> Result<(), Refusal> {
        let (reply, answer) = oneshot::channel();
        // A closed channel on either way means the same: the resource's task has ended.
        let _ = self.control.send(Control::Operate { verb, reply }).await;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// A picture of the resource; `None` once it has stopped.
    pub async fn report(&self) -> Option<Report> {
        let (reply, answer) = oneshot::channel();
        self.control.send(Control::Report { reply }).await.ok()?;
        answer.await.ok()
    }

    /// Asks initiators to log out, finishes what is in flight and returns once the disks are closed.
    pub(super) async fn stop(&self) {
        let (done, left) = oneshot::channel();
        let place = self.place;
        self.shard
            .run(move |local| {
                if let Some(export) = local.export(place) {
                    tokio::task::spawn_local(async move {
                        export.iscsi.stop().await;
                        // The time to leave may be over.
                        let _ = done.send(());
                    });
                }
            })
            .await;
        // A command that is stuck ends when the resource stops, so the time is bounded.
        let _ = tokio::time::timeout(LEAVE_TIME, left).await;
        let (reply, answer) = oneshot::channel();
        // A closed channel on either way means that the resource's task has ended already.
        let _ = self.control.send(Control::Stop { reply }).await;
        let _ = answer.await;
    }
}

/// The iSCSI target portal group tag of a node, which is its target port group and its relative port as well: one
/// for each node, so that the paths of a host differ.
#[must_use]
pub fn portal_group(node: NodeId) -> u16 {
    u16::from(node.0) + 1
}

/// How long initiators and their commands may take to leave, when the node stops.
const LEAVE_TIME: Duration = Duration::from_secs(5);

fn stopped() -> Refusal {
    Refusal { what: "the resource has stopped".into(), remedy: "start the node again".into() }
}
