//! Verbs that ask a running node once, and `events`, which goes on asking.

use ops::{
    admin::{self, Done},
    cli::{
        Attach, Connect, Demote, Detach, Disconnect, Events, Invalidate, InvalidateRemote, NewGeneration,
        PauseSync, Promote, Reach, Set, Setting, Status, Why,
    },
    status::{self, Resource, explain},
};
use serde::Serialize;
use serde_json::json;

use super::{CommandError, json, print};
use crate::client::{Client, encoded};

pub(super) async fn status(status: &Status) -> Result<(), CommandError> {
    let client = Client::new(status.reach.admin.as_deref())?;
    let resources = pictures(&client, status.resource.as_deref()).await?;
    print(&if status.reach.json { json(&resources) } else { status::render(&resources) })
}

pub(super) async fn why(why: &Why) -> Result<(), CommandError> {
    let client = Client::new(why.reach.admin.as_deref())?;
    let resources = pictures(&client, why.resource.as_deref()).await?;
    let causes =
        |resource: &Resource| json!({ "name": resource.name, "findings": explain::findings(resource) });
    print(&if why.reach.json {
        json(&resources.iter().map(causes).collect::<Vec<_>>())
    } else {
        status::causes(&resources)
    })
}

pub(super) async fn pictures(client: &Client, resource: Option<&str>) -> Result<Vec<Resource>, CommandError> {
    let query = resource.map(|name| format!("?resource={}", encoded(name))).unwrap_or_default();
    Ok(client.get(&format!("/status{query}")).await?)
}

pub(super) async fn events(events: &Events) -> Result<(), CommandError> {
    let client = Client::new(events.reach.admin.as_deref())?;
    let query = format!("/events?now={}&text={}", events.now, !events.reach.json);
    let mut lines = client.lines(&query).await?;
    while let Some(line) = lines.next().await? {
        print(&format!("{}\n", String::from_utf8_lossy(&line)))?;
    }
    Ok(())
}

pub(super) async fn primary(ask: &Promote) -> Result<(), CommandError> {
    operate(&ask.reach, &ask.resource, "primary", &admin::Promote { force: ask.force }).await
}

pub(super) async fn secondary(ask: &Demote) -> Result<(), CommandError> {
    operate(&ask.reach, &ask.resource, "secondary", &admin::Demote { force: ask.force }).await
}

pub(super) async fn connect(ask: &Connect) -> Result<(), CommandError> {
    let asked = admin::Connect { peer: ask.peer.clone(), discard_my_data: ask.discard_my_data };
    operate(&ask.reach, &ask.resource, "connect", &asked).await
}

pub(super) async fn disconnect(ask: &Disconnect) -> Result<(), CommandError> {
    operate(&ask.reach, &ask.resource, "disconnect", &admin::Disconnect { peer: ask.peer.clone() }).await
}

pub(super) async fn pause_sync(ask: &PauseSync, paused: bool) -> Result<(), CommandError> {
    let verb = if paused { "pause-sync" } else { "resume-sync" };
    let volume = ask.target.number.map(|number| number.0);
    operate(&ask.reach, &ask.target.resource, verb, &admin::PauseSync { volume, peer: ask.peer.clone() })
        .await
}

pub(super) async fn detach(ask: &Detach) -> Result<(), CommandError> {
    let asked = admin::Detach { volume: ask.volume.number.0, force: ask.force };
    operate(&ask.reach, &ask.volume.resource, "detach", &asked).await
}

pub(super) async fn attach(ask: &Attach) -> Result<(), CommandError> {
    let asked = admin::Attach { volume: ask.volume.number.0 };
    operate(&ask.reach, &ask.volume.resource, "attach", &asked).await
}

pub(super) async fn invalidate(ask: &Invalidate) -> Result<(), CommandError> {
    let asked = admin::Invalidate { volume: ask.volume.number.0 };
    operate(&ask.reach, &ask.volume.resource, "invalidate", &asked).await
}

pub(super) async fn invalidate_remote(ask: &InvalidateRemote) -> Result<(), CommandError> {
    let asked = admin::InvalidateRemote { volume: ask.volume.number.0, peer: ask.peer.clone() };
    operate(&ask.reach, &ask.volume.resource, "invalidate-remote", &asked).await
}

pub(super) async fn new_generation(ask: &NewGeneration) -> Result<(), CommandError> {
    let asked = admin::NewGeneration { volume: ask.volume.number.0, clear_bitmap: ask.clear_bitmap };
    operate(&ask.reach, &ask.volume.resource, "new-generation", &asked).await
}

pub(super) async fn set(ask: &Set) -> Result<(), CommandError> {
    let mut asked = admin::Set { peer: ask.peer.clone(), protocol: None };
    for setting in &ask.settings {
        match setting {
            Setting::Protocol(mode) => asked.protocol = Some((*mode).into()),
        }
    }
    operate(&ask.reach, &ask.resource, "set", &asked).await
}

/// Asks a node to do something to a resource. In JSON it prints the resource as it stands then; for people nothing.
async fn operate(
    reach: &Reach,
    resource: &str,
    verb: &str,
    ask: &impl Serialize,
) -> Result<(), CommandError> {
    let client = Client::new(reach.admin.as_deref())?;
    let done: Done = client.post(&format!("/resources/{}/{verb}", encoded(resource)), ask).await?;
    if reach.json { print(&json(&done.resource)) } else { Ok(()) }
}
