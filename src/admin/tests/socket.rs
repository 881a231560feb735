//! The socket's file: whose it is, what it replaces, and what it leaves alone.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    sync::Arc,
};

use ops::status::Resource;
use tokio::time::timeout;

use super::world::{PATIENCE, World};
use crate::{admin::socket::AdminSocket, client::ClientError};

/// Security: mode 0600 (CVE-2020-10699 was a world-writable control socket), and gone when the node is.
#[tokio::test]
async fn only_the_owner_may_ask() {
    let world = World::new();
    let path = world.directory().join("run/alpha.sock");
    let socket = AdminSocket::bind(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let serving = tokio::spawn(socket.serve(Arc::clone(&world.view), world.stop.clone()));
    world.stop.cancel();
    timeout(PATIENCE, serving).await.unwrap().unwrap();
    assert!(!path.exists());
}

/// SIGKILL leaves the file; the next start replaces it. A running node keeps its own.
#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let world = World::new();
    drop(UnixListener::bind(world.socket()).unwrap());
    assert!(world.socket().exists(), "std leaves the file");
    let socket = AdminSocket::bind(&world.socket()).unwrap();
    let error = AdminSocket::bind(&world.socket()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("a node listens there already"), "{error}");
    drop(socket);
}

/// A path that was mistyped destroys nothing.
#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let world = World::new();
    let path = world.directory().join("alpha-db0.img");
    fs::write(&path, "data").unwrap();
    let error = AdminSocket::bind(&path).unwrap_err();
    assert!(error.to_string().contains("something else than a socket"), "{error}");
    let link = world.directory().join("link.sock");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(AdminSocket::bind(&link).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"data");
}

/// The client says what to do when nobody answers.
#[tokio::test]
async fn a_missing_node_is_explained() {
    let world = World::new();
    let missing = world.client().get::<Vec<Resource>>("/status").await.unwrap_err();
    assert!(matches!(missing, ClientError::Unreachable { .. }), "{missing}");
    assert!(missing.to_string().contains("does the node run?"), "{missing}");
    drop(UnixListener::bind(world.socket()).unwrap());
    let refused = world.client().get::<Vec<Resource>>("/status").await.unwrap_err();
    assert!(refused.to_string().contains("does the node run?"), "{refused}");
}
