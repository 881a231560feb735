//! What operators reach of a running node: the admin socket and `/metrics`.

mod api;
mod follow;
mod http;
pub mod scrape;
pub mod socket;

use std::{sync::Arc, time::Duration};

use ops::{
    config::Identity,
    metrics::{Counters, Latencies},
    status::{self, Names, Session},
};

use crate::{
    daemon::{Node, Resource},
    volume::Report,
};

/// A running node with what a picture of it needs.
#[derive(Debug)]
pub struct View {
    node: Node,
    names: Names,
    counters: Arc<Counters>,
    latencies: Vec<Arc<Latencies>>,
}

impl View {
    /// A view of a node. `latencies` are those of its resources.
    #[must_use]
    pub fn new(
        node: Node,
        identity: Identity,
        counters: Arc<Counters>,
        latencies: Vec<Arc<Latencies>>,
    ) -> Self {
        let names = Names::new(&node.config, identity);
        Self { node, names, counters, latencies }
    }

    /// The pictures of every resource that runs.
    async fn pictures(&self) -> Vec<status::Resource> {
        let reports = futures_util::future::join_all(self.node.resources.iter().map(Resource::report)).await;
        reports.into_iter().flatten().map(|report| self.picture(report)).collect()
    }

    fn picture(&self, report: Report) -> status::Resource {
        let session = |session: crate::volume::SessionReport| Session {
            initiator: session.initiator,
            transport: session.transport.to_owned(),
            address: session.address,
        };
        let sessions = report.sessions.into_iter().map(session).collect();
        status::Resource::new(&report.status, sessions, &self.names)
    }
}

/// Waits after a failed accept: for lack of file descriptors it would fail again at once.
async fn pause_after(error: &std::io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
