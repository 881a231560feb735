//! The stream of changes, and the verbs that follow it.

use std::{sync::Arc, time::Duration};

use clap::Parser;
use ops::cli::{Cli, Command, Verb};
use replication::{ConnectionState, Event, NodeId, Role};
use tokio::time::timeout;

use super::world::{PATIENCE, World, recover};
use crate::{
    admin::socket::AdminSocket,
    client::Lines,
    commands::{self, CommandError},
};

async fn next(lines: &mut Lines) -> String {
    let line = timeout(PATIENCE, lines.next()).await.unwrap().unwrap();
    String::from_utf8(line.expect("the stream goes on").to_vec()).unwrap()
}

async fn until(lines: &mut Lines, wanted: &str) -> String {
    loop {
        let line = next(lines).await;
        if line.contains(wanted) {
            return line;
        }
    }
}

fn verb(world: &World, line: &str) -> Verb {
    let socket = world.socket();
    let words = line.split_whitespace().chain(["--admin", socket.to_str().unwrap()]);
    match Cli::try_parse_from(["evenkeel"].into_iter().chain(words)).unwrap().command {
        Command::Verb(verb) => verb,
        other => panic!("{other:?} is not asked of a node"),
    }
}

/// What exists, then each change as it happens, in text and in JSON.
#[tokio::test]
async fn changes_are_told_as_they_happen() {
    let world = World::serving();
    let client = world.client();
    let mut text = client.lines("/events?text=true").await.unwrap();
    let mut json = client.lines("/events").await.unwrap();
    assert_eq!(next(&mut text).await, "exists resource name:db role:Secondary suspended:no");
    until(&mut text, "exists -").await;
    until(&mut json, r#"{"event":"exists","object":"-"}"#).await;
    world.tell(Event::Role(Role::Primary));
    assert_eq!(next(&mut text).await, "change resource name:db role:Primary suspended:no");
    assert_eq!(
        next(&mut json).await,
        r#"{"event":"change","object":"resource","name":"db","role":"Primary","suspended":false}"#,
    );
    world.puppet.lock().unwrap().report.sessions.clear();
    assert!(next(&mut text).await.starts_with("destroy session name:db transport:iscsi"));
}

#[tokio::test]
async fn now_ends_with_what_exists() {
    let world = World::serving();
    let mut lines = world.client().lines("/events?now=true&text=true").await.unwrap();
    until(&mut lines, "exists -").await;
    assert!(timeout(PATIENCE, lines.next()).await.unwrap().unwrap().is_none());
}

/// A reader that missed events learns how things stand; the stream's memory stays bounded.
#[tokio::test]
async fn a_slow_reader_is_told_how_things_stand() {
    let world = World::serving();
    let mut lines = world.client().lines("/events?text=true").await.unwrap();
    until(&mut lines, "exists -").await;
    world.change(|status| status.role = Role::Primary);
    // More than the channel holds, in one go, so that the reader's task cannot keep up.
    for _ in 0..64 {
        for state in [ConnectionState::Connected, ConnectionState::Connecting] {
            world.tell(Event::Connection { peer: NodeId(1), state });
        }
    }
    assert!(until(&mut lines, "change resource").await.contains("role:Primary"));
}

/// The stream ends when the node stops, so that its readers notice.
#[tokio::test]
async fn the_stream_ends_with_the_node() {
    let world = World::serving();
    let mut lines = world.client().lines("/events?text=true").await.unwrap();
    until(&mut lines, "exists -").await;
    world.stop.cancel();
    let end = timeout(PATIENCE, lines.next()).await.unwrap();
    assert!(matches!(end, Ok(None) | Err(_)), "{end:?}");
}

/// `wait` returns once it is so, whether by an event or because the node has started.
#[tokio::test]
async fn wait_returns_once_it_is_so() {
    let world = World::serving();
    let verb = verb(&world, "wait db up-to-date");
    let waiting = tokio::spawn(async move { commands::run(&verb).await });
    // A reader of the stream: the wait has begun.
    while world.events.receiver_count() == 0 {
        tokio::task::yield_now().await;
    }
    world.change(recover);
    world.tell(Event::Connection { peer: NodeId(1), state: ConnectionState::Connected });
    timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn wait_waits_for_the_node_itself() {
    let world = World::new();
    world.change(recover);
    let verb = verb(&world, "wait db connected --timeout 30s");
    let waiting = tokio::spawn(async move { commands::run(&verb).await });
    let socket = AdminSocket::bind(&world.socket()).unwrap();
    tokio::spawn(socket.serve(Arc::clone(&world.view), world.stop.clone()));
    timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
}

/// The contract: exit 1 when it does not become true in time, and at once where it never will.
#[tokio::test]
async fn wait_gives_up() {
    let world = World::serving();
    let late = commands::run(&verb(&world, "wait db connected --timeout 100ms")).await.unwrap_err();
    assert!(late.to_string().contains("not so after 100ms; `evenkeel status` says"), "{late}");
    let never = timeout(Duration::from_secs(20), commands::run(&verb(&world, "wait mail connected"))).await;
    let never = never.expect("a resource that is not there does not come").unwrap_err();
    assert!(never.to_string().contains("no resource `mail`"), "{never}");
    assert!(matches!(never, CommandError::Client(_)));
}

/// Every verb of the contract that asks a node, as the command line runs it.
#[tokio::test]
async fn verbs_run_from_the_command_line() {
    let world = World::serving();
    for line in [
        "status",
        "status db --json",
        "events --now",
        "events --now --json",
        "primary db --force",
        "secondary db --json",
        "connect db --peer bravo",
        "disconnect db",
        "set db protocol=B",
    ] {
        commands::run(&verb(&world, line)).await.unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    assert_eq!(world.asked().len(), 5);
}
