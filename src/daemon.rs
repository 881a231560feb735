//! The daemon: starts shards, resources, peers and listeners in order, and stops them in reverse.

use replication::{Event, Refusal, Verb};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::{
    shard::Shard,
    volume::{Control, Report},
};

/// A running node as its listeners and its admin socket see it, from any thread.
#[derive(Clone, Debug)]
pub struct Node {
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
}

fn stopped() -> Refusal {
    Refusal { what: "the resource has stopped".into(), remedy: "start the node again".into() }
}
