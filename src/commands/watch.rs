//! Verbs that look at a node again and again: `status --watch` and `wait`.

use std::{
    future::pending,
    io::{self, IsTerminal},
    time::Duration,
};

use ops::{
    cli::{Status, Wait, WaitFor},
    quantity::show_time,
    status::{self, Resource},
};
use tokio::time::{sleep, timeout};

use super::{CommandError, ask::pictures, print};
use crate::client::{Client, ClientError, Lines};

/// Draws the status again after each change, and every second while something moves, until Ctrl-C.
pub(super) async fn status(status: &Status) -> Result<(), CommandError> {
    let client = Client::new(status.reach.admin.as_deref())?;
    let mut lines = Some(client.lines("/events").await?);
    let clear = if io::stdout().is_terminal() && !status.reach.json { "\u{1b}[H\u{1b}[2J" } else { "" };
    let mut last = String::new();
    loop {
        let resources = pictures(&client, status.resource.as_deref()).await?;
        let frame = if status.reach.json {
            serde_json::to_string(&resources).expect("pictures are plain structures") + "\n"
        } else {
            status::watch(&resources)
        };
        if frame != last {
            print(&format!("{clear}{frame}"))?;
            last = frame;
        }
        // The time being up is the other way on.
        let _ = timeout(FRAME_EVERY, changed(&mut lines)).await;
    }
}

/// Returns once the state that is waited for is there.
pub(super) async fn wait(wait: &Wait) -> Result<(), CommandError> {
    let client = Client::new(wait.reach.admin.as_deref())?;
    let until = until(&client, &wait.resource, wait.state);
    let resource = match wait.timeout {
        None => until.await?,
        Some(time) => match timeout(time, until).await {
            Ok(done) => done?,
            Err(_) => return Err(late(wait, time).into()),
        },
    };
    if wait.reach.json { print(&super::json(&resource)) } else { Ok(()) }
}

async fn until(client: &Client, resource: &str, state: WaitFor) -> Result<Resource, CommandError> {
    let mut told = false;
    loop {
        match look(client, resource, state).await {
            // The node is starting, or starts again: the wait goes on.
            Err(CommandError::Client(
                error @ (ClientError::Unreachable { .. } | ClientError::Closed { .. }),
            )) if may_come(&error) => {
                if !told {
                    eprintln!("waiting for the node at {}", client.path().display());
                    told = true;
                }
                sleep(CONNECT_EVERY).await;
            }
            Ok(None) => sleep(CONNECT_EVERY).await,
            Ok(Some(resource)) => return Ok(resource),
            Err(error) => return Err(error),
        }
    }
}

/// Looks after each change. `None` when the stream of changes has ended.
async fn look(client: &Client, name: &str, state: WaitFor) -> Result<Option<Resource>, CommandError> {
    // The stream first, so that no change falls between the look and the stream.
    let mut lines = client.lines("/events").await?;
    loop {
        let resource = pictures(client, Some(name)).await?.into_iter().find(|resource| match state {
            WaitFor::Connected => resource.is_connected(),
            WaitFor::UpToDate => resource.is_up_to_date(),
        });
        if resource.is_some() {
            return Ok(resource);
        }
        // Every second as well: what is not a change of a state has no line.
        if let Ok(line) = timeout(FRAME_EVERY, lines.next()).await
            && line?.is_none()
        {
            return Ok(None);
        }
    }
}

fn may_come(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        }
        _ => true,
    }
}

fn late(wait: &Wait, time: Duration) -> ClientError {
    let state = match wait.state {
        WaitFor::Connected => "connected to every peer",
        WaitFor::UpToDate => "connected and up to date everywhere",
    };
    ClientError::TimedOut { what: format!("`{}` being {state}", wait.resource), after: show_time(time) }
}

/// Waits for a line of the stream; for ever once it has ended.
async fn changed(lines: &mut Option<Lines>) {
    if let Some(stream) = lines {
        match stream.next().await {
            Ok(Some(_)) => return,
            Ok(None) | Err(_) => *lines = None,
        }
    }
    pending::<()>().await;
}

const FRAME_EVERY: Duration = Duration::from_secs(1);
const CONNECT_EVERY: Duration = Duration::from_millis(100);
