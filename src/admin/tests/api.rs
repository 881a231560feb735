//! Requests and answers, as the command line and as scripts send them.

use block::VolumeNumber;
use ops::{
    admin::{Connect, Demote, Disconnect, Done, Promote, Protocol, Set},
    status::Resource,
};
use replication::{AckMode, NodeId, Refusal, Role, Verb};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::world::World;
use crate::client::ClientError;

#[tokio::test]
async fn status_is_a_picture() {
    let world = World::serving();
    let client = world.client();
    let all: Vec<Resource> = client.get("/status").await.unwrap();
    assert_eq!((all.len(), all[0].name.as_str(), all[0].role), (1, "db", Role::Secondary));
    assert_eq!(all[0].connections[0].name, "bravo");
    assert_eq!(all[0].sessions[0].initiator, "iqn.1993-08.org.debian:01:host1");
    world.change(|status| status.role = Role::Primary);
    let one: Vec<Resource> = client.get("/status?resource=db").await.unwrap();
    assert_eq!(one[0].role, Role::Primary);
}

/// Each verb reaches the core as it was meant, with names turned into ids.
#[tokio::test]
async fn verbs_reach_the_resource() {
    let world = World::serving();
    let client = world.client();
    let bravo = Some("bravo".to_owned());
    let peer = Some(NodeId(1));
    for (verb, ask, meant) in [
        ("primary", json!(Promote { force: true }), Verb::Primary { force: true }),
        ("primary", json!({}), Verb::Primary { force: false }),
        ("secondary", json!(Demote { force: false }), Verb::Secondary { force: false }),
        (
            "connect",
            json!(Connect { peer: bravo.clone(), discard_my_data: true }),
            Verb::Connect { peer, discard_my_data: true },
        ),
        ("connect", json!({}), Verb::Connect { peer: None, discard_my_data: false }),
        ("disconnect", json!(Disconnect { peer: bravo.clone() }), Verb::Disconnect { peer }),
        (
            "set",
            json!(Set { peer: bravo, protocol: Some(Protocol::A) }),
            Verb::Protocol { peer, mode: AckMode::A },
        ),
        (
            "pause-sync",
            json!({"volume": 0, "peer": "bravo"}),
            Verb::PauseSync { volume: Some(VolumeNumber(0)), peer, paused: true },
        ),
        ("resume-sync", json!({}), Verb::PauseSync { volume: None, peer: None, paused: false }),
        ("invalidate", json!({"volume": 0}), Verb::Invalidate { volume: VolumeNumber(0) }),
        (
            "invalidate-remote",
            json!({"volume": 0, "peer": "bravo"}),
            Verb::InvalidateRemote { volume: VolumeNumber(0), peer: NodeId(1) },
        ),
        (
            "new-generation",
            json!({"volume": 0, "clear-bitmap": true}),
            Verb::NewGeneration { volume: VolumeNumber(0), clear_bitmap: true },
        ),
    ] {
        let done: Done = client.post(&format!("/resources/db/{verb}"), &ask).await.unwrap();
        assert_eq!((done.resource.name.as_str(), world.asked()), ("db", vec![meant]));
    }
}

/// Refusals say what stands in the way and what to do, and nothing was asked of the resource.
#[tokio::test]
async fn mistakes_are_refused_with_a_remedy() {
    let world = World::serving();
    let client = world.client();
    for (path, ask, error, remedy) in [
        ("/resources/mail/primary", json!({}), "no resource `mail`", "the resources are: db"),
        ("/resources/db/connect", json!({"peer": "delta"}), "no peer `delta`", "bravo, charlie"),
        ("/resources/db/connect", json!({"peer": "alpha"}), "no peer `alpha`", "bravo, charlie"),
        ("/resources/db/connect", json!({"pier": "bravo"}), "pier", "docs/admin-api.md"),
        ("/resources/db/set", json!({}), "nothing is set", "protocol"),
        ("/resources/db/set", json!({"protocol": "D"}), "`D`", "docs/admin-api.md"),
        ("/resources/db/explode", json!({}), "nothing here", "docs/admin-api.md"),
        ("/resources/db/primary", json!({"force": "x".repeat(5000)}), "length limit", "short"),
    ] {
        match client.post::<Done>(path, &ask).await {
            Err(ClientError::Refused(failure)) => {
                assert!(
                    failure.error.contains(error) && failure.remedy.contains(remedy),
                    "{path}: {failure:?}"
                );
            }
            other => panic!("{path}: {other:?}"),
        }
    }
    let unknown = client.get::<Vec<Resource>>("/status?resource=mail").await.unwrap_err();
    assert!(
        unknown.to_string().contains("no resource `mail` on this node; the resources are: db"),
        "{unknown}"
    );
    assert_eq!(world.asked(), []);
}

/// What the core refuses reaches the operator in the core's words.
#[tokio::test]
async fn the_core_refuses_in_its_own_words() {
    let world = World::serving();
    world.puppet.lock().unwrap().refusal =
        Some(Refusal { what: "bravo is Primary".to_owned(), remedy: "make it Secondary first".to_owned() });
    let refused = world.client().post::<Done>("/resources/db/primary", &json!({})).await.unwrap_err();
    assert_eq!(refused.to_string(), "bravo is Primary; make it Secondary first");
}

/// `curl --unix-socket` needs no header of ours: status codes and JSON over plain HTTP.
#[tokio::test]
async fn plain_http_works() {
    let world = World::serving();
    for (request, status) in [
        ("GET /v1/status HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET /v2/status HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", "HTTP/1.1 404 Not Found"),
        ("POST /v1/status HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", "HTTP/1.1 405 "),
        (
            "POST /v1/resources/db/primary HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK",
        ),
        ("no HTTP at all\r\n\r\n", "HTTP/1.1 400 Bad Request"),
    ] {
        let mut stream = UnixStream::connect(world.socket()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(status), "{request}: {answer}");
    }
}
