//! `/metrics` and `/healthz`, for a scraper on the network.

use std::{fs, io, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use ops::metrics::{self, Process, Scrape};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{View, http};
use crate::{daemon::Resource, half_open::HalfOpen};

/// Answers on a listener until the node stops.
pub async fn serve(listener: TcpListener, view: Arc<View>, stop: CancellationToken) {
    let router =
        Router::new().route("/metrics", get(scrape)).route("/healthz", get(healthy)).with_state(view);
    let mut open = HalfOpen::new(CONNECTIONS_MAX, CONNECTIONS_MAX_EACH);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                super::pause_after(&error).await;
                continue;
            }
        };
        let (router, stop) = (router.clone(), stop.clone());
        // Whoever holds a connection open for long gives its place back.
        let connection = tokio::spawn(timeout(CONNECTION_TIME_MAX, http::serve(stream, router, stop)));
        // Connections that say nothing keep nobody out: the oldest of a crowd makes room.
        open.add(address.ip(), connection.abort_handle());
    }
}

async fn scrape(State(view): State<Arc<View>>) -> Response {
    let reports = futures_util::future::join_all(view.node.resources.iter().map(Resource::report)).await;
    let resources: Vec<_> = reports
        .into_iter()
        .flatten()
        .map(|report| {
            let transports = report.sessions.iter().map(|session| session.transport).collect();
            (report.status, transports)
        })
        .collect();
    let text = metrics::render(&Scrape {
        resources: &resources,
        names: &view.names,
        latencies: &view.latencies,
        counters: &view.counters,
        process: process().ok(),
    });
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

/// 200 while every resource answers, 503 otherwise.
async fn healthy(State(view): State<Arc<View>>) -> Response {
    let reports = futures_util::future::join_all(view.node.resources.iter().map(Resource::report));
    match timeout(ANSWER_TIME_MAX, reports).await {
        Ok(reports) if reports.iter().all(Option::is_some) => (StatusCode::OK, "ok\n").into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "a resource does not answer\n").into_response(),
    }
}

/// What proc(5) says of this process.
fn process() -> io::Result<Process> {
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "a field is missing");
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field is the name in brackets, which may have blanks in it.
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or_else(missing)?.1.split_whitespace().collect();
    let number =
        |field: usize| fields.get(field - 3).and_then(|field| field.parse::<u64>().ok()).ok_or_else(missing);
    let ticks = rustix::param::clock_ticks_per_second();
    let seconds =
        |ticks_of: u64| Duration::from_millis(ticks_of.saturating_mul(1000) / ticks.max(1)).as_secs_f64();
    let page = rustix::param::page_size() as u64;
    let system = fs::read_to_string("/proc/stat")?;
    let booted =
        system.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok()).ok_or_else(missing)?;
    Ok(Process {
        cpu_seconds: seconds(number(UTIME)? + number(STIME)?),
        resident_bytes: number(RSS)? * page,
        open_fds: fs::read_dir("/proc/self/fd")?.count() as u64,
        max_fds: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX),
        start_seconds: Duration::from_secs(booted).as_secs_f64() + seconds(number(STARTTIME)?),
    })
}

/// The numbers of fields of /proc/PID/stat, counted from 1 (proc(5)).
const UTIME: usize = 14;
const STIME: usize = 15;
const STARTTIME: usize = 22;
const RSS: usize = 24;

const CONNECTIONS_MAX: usize = 64;
const CONNECTIONS_MAX_EACH: usize = 32;
const CONNECTION_TIME_MAX: Duration = Duration::from_mins(2);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
