//! `/metrics` and `/healthz` over TCP.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::world::{PATIENCE, World};
use crate::admin::scrape;

async fn open(world: &World) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(scrape::serve(listener, Arc::clone(&world.view), world.stop.clone()));
    address
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

/// The contract, Metrics: the text format, with the media type that Prometheus 3 insists on.
#[tokio::test]
async fn metrics_are_prometheus_text() {
    let world = World::new();
    let answer = get(open(&world).await, "/metrics").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.to_lowercase().contains("content-type: text/plain; version=0.0.4\r\n"), "{head}");
    for series in [
        "drbd_resource_resources 1",
        "drbd_connection_state{name=\"db\",conn_name=\"bravo\",peer_node_id=\"1\",drbd_connection_state=\"Connecting\"} 1",
        "evenkeel_sessions{name=\"db\",transport=\"iscsi\"} 1",
        "evenkeel_disk_latency_seconds_count{name=\"db\",operation=\"flush\"} 0",
    ] {
        assert!(body.lines().any(|line| line == series), "{series}\n{body}");
    }
    let value = |name: &str| {
        let line = body.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
        line.rsplit(' ').next().unwrap_or_default().parse::<f64>().unwrap_or_default()
    };
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_start_time_seconds") > 1.6e9);
    assert!(value("process_open_fds") > 3.0 && value("process_max_fds") >= value("process_open_fds"));
}

#[tokio::test]
async fn health_is_whether_resources_answer() {
    let world = World::new();
    let address = open(&world).await;
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200 OK"));
    assert!(get(address, "/secrets").await.starts_with("HTTP/1.1 404 Not Found"));
    world.end();
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 503 "));
}

/// P13: strangers who say nothing, or too much, do not keep a scraper out, and are closed.
#[tokio::test]
async fn strangers_cost_little() {
    let world = World::new();
    let address = open(&world).await;
    let mut silent = Vec::new();
    // Within the queue of the listener, far more than may stay.
    for _ in 0..1000 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut loud = TcpStream::connect(address).await.unwrap();
    let endless = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(100_000));
    // The node closes in the middle of it.
    let _ = loud.write_all(endless.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, loud.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 431") || answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    assert!(get(address, "/metrics").await.starts_with("HTTP/1.1 200 OK"));
    let refused = timeout(PATIENCE, silent[0].read(&mut [0])).await.unwrap();
    assert!(matches!(refused, Ok(0) | Err(_)), "the oldest made room");
}
