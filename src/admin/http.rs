//! One HTTP connection, bounded in memory and in time.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Serves one connection until it ends or the node stops.
pub(super) async fn serve<S>(stream: S, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let result = tokio::select! {
        result = connection => result,
        () = stop.cancelled() => return,
    };
    if let Err(error) = result {
        tracing::debug!(%error, "an HTTP connection ended");
    }
}

/// Requests are a line and a few headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const HEADERS_MAX: usize = 32;

/// In bytes; hyper allows no less than 8 KiB.
const BUFFER_MAX: usize = 16 * 1024;
