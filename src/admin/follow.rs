//! The stream of changes for one reader.

use std::{sync::Arc, time::Duration};

use axum::body::Bytes;
use ops::{
    admin::EventsQuery,
    events::{Follower, Line},
};
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::View;

/// Sends what exists, and unless it is asked for `now` every change after it, until the reader is gone or the node stops.
pub(super) async fn follow(
    view: Arc<View>,
    lines: mpsc::Sender<Bytes>,
    query: EventsQuery,
    stop: CancellationToken,
) {
    // Subscribed first, so that nothing falls between the picture and the events.
    let mut events = view.node.events.subscribe();
    let (mut follower, mut batch) = Follower::start(view.pictures().await);
    let mut sessions = interval(SESSIONS_EVERY);
    sessions.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if send(&lines, &batch, query.text).await.is_err() || query.now {
            return;
        }
        batch = tokio::select! {
            event = events.recv() => match event {
                Ok((place, event)) => match view.node.resources.get(place) {
                    Some(resource) => follower.event(&resource.name, &event),
                    None => Vec::new(),
                },
                // A slow reader misses what was in between, and learns how things stand.
                Err(RecvError::Lagged(_)) => follower.replace(view.pictures().await),
                Err(RecvError::Closed) => return,
            },
            // Sessions come and go without an event of the core.
            _ = sessions.tick() => {
                let pictures = view.pictures().await;
                pictures.iter().flat_map(|resource| follower.sessions(resource)).collect()
            }
            () = lines.closed() => return,
            () = stop.cancelled() => return,
        };
    }
}

async fn send(
    lines: &mpsc::Sender<Bytes>,
    batch: &[Line],
    text: bool,
) -> Result<(), mpsc::error::SendError<Bytes>> {
    for line in batch {
        let mut bytes = if text {
            line.to_string().into_bytes()
        } else {
            serde_json::to_vec(line).expect("strings, numbers and truths always serialise")
        };
        bytes.push(b'\n');
        lines.send(bytes.into()).await?;
    }
    Ok(())
}

const SESSIONS_EVERY: Duration = Duration::from_secs(1);
