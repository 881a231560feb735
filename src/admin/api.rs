//! The admin API: what `ops::admin` describes, answered by a running node.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequest, Path, Query, Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use block::VolumeNumber;
use ops::admin::{
    Attach, Connect, Demote, Detach, Disconnect, Done, EventsQuery, Failure, Invalidate, InvalidateRemote,
    JSON_LINES, NewGeneration, PauseSync, Promote, ROOT, Set, StatusQuery, TEXT_LINES,
};
use replication::{NodeId, Refusal, Verb};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{View, follow::follow};
use crate::daemon::Resource;

/// What every handler shares.
#[derive(Clone)]
struct Context {
    view: Arc<View>,
    stop: CancellationToken,
}

pub(super) fn router(view: Arc<View>, stop: CancellationToken) -> Router {
    let verbs = Router::new()
        .route("/primary", post(primary))
        .route("/secondary", post(secondary))
        .route("/connect", post(connect))
        .route("/disconnect", post(disconnect))
        .route("/pause-sync", post(pause_sync))
        .route("/resume-sync", post(resume_sync))
        .route("/detach", post(detach))
        .route("/attach", post(attach))
        .route("/invalidate", post(invalidate))
        .route("/invalidate-remote", post(invalidate_remote))
        .route("/new-generation", post(new_generation))
        .route("/set", post(set));
    let v1 = Router::new()
        .route("/status", get(status))
        .route("/events", get(events))
        .nest("/resources/{resource}", verbs);
    Router::new()
        .nest(ROOT, v1)
        .fallback(|| async {
            Refused::not_found("there is nothing here", "see docs/admin-api.md for what there is")
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(Context { view, stop })
}

async fn status(State(of): State<Context>, query: Query<StatusQuery>) -> Result<Response, Refused> {
    let mut pictures = of.view.pictures().await;
    if let Some(name) = &query.resource {
        of.find(name)?;
        pictures.retain(|picture| picture.name == *name);
    }
    Ok(Json(pictures).into_response())
}

async fn events(State(of): State<Context>, query: Query<EventsQuery>) -> Response {
    let (sender, mut lines) = mpsc::channel::<Bytes>(LINES_MAX);
    let kind = if query.text { TEXT_LINES } else { JSON_LINES };
    tokio::spawn(follow(of.view, sender, query.0, of.stop));
    let stream = futures_util::stream::poll_fn(move |context| {
        lines.poll_recv(context).map(|line| line.map(Ok::<_, Infallible>))
    });
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(stream)).into_response()
}

async fn primary(of: State<Context>, resource: Path<String>, Input(ask): Input<Promote>) -> Answer {
    of.operate(&resource, |_| Ok(Verb::Primary { force: ask.force })).await
}

async fn secondary(of: State<Context>, resource: Path<String>, Input(ask): Input<Demote>) -> Answer {
    of.operate(&resource, |_| Ok(Verb::Secondary { force: ask.force })).await
}

async fn connect(of: State<Context>, resource: Path<String>, Input(ask): Input<Connect>) -> Answer {
    let discard_my_data = ask.discard_my_data;
    of.operate(&resource, |of| Ok(Verb::Connect { peer: of.peer(ask.peer.as_deref())?, discard_my_data }))
        .await
}

async fn disconnect(of: State<Context>, resource: Path<String>, Input(ask): Input<Disconnect>) -> Answer {
    of.operate(&resource, |of| Ok(Verb::Disconnect { peer: of.peer(ask.peer.as_deref())? })).await
}

async fn pause_sync(of: State<Context>, resource: Path<String>, Input(ask): Input<PauseSync>) -> Answer {
    of.hold_up(&resource, &ask, true).await
}

async fn resume_sync(of: State<Context>, resource: Path<String>, Input(ask): Input<PauseSync>) -> Answer {
    of.hold_up(&resource, &ask, false).await
}

async fn detach(of: State<Context>, resource: Path<String>, Input(ask): Input<Detach>) -> Answer {
    let (volume, force) = (VolumeNumber(ask.volume), ask.force);
    of.operate(&resource, |_| Ok(Verb::Detach { volume, force })).await
}

async fn attach(of: State<Context>, resource: Path<String>, Input(ask): Input<Attach>) -> Answer {
    of.operate(&resource, |_| Ok(Verb::Attach { volume: VolumeNumber(ask.volume) })).await
}

async fn invalidate(of: State<Context>, resource: Path<String>, Input(ask): Input<Invalidate>) -> Answer {
    of.operate(&resource, |_| Ok(Verb::Invalidate { volume: VolumeNumber(ask.volume) })).await
}

async fn invalidate_remote(
    of: State<Context>,
    resource: Path<String>,
    Input(ask): Input<InvalidateRemote>,
) -> Answer {
    of.operate(&resource, |of| {
        let peer = of.peer(Some(&ask.peer))?.ok_or_else(|| Refused::bad("no peer is named", "set peer"))?;
        Ok(Verb::InvalidateRemote { volume: VolumeNumber(ask.volume), peer })
    })
    .await
}

async fn new_generation(
    of: State<Context>,
    resource: Path<String>,
    Input(ask): Input<NewGeneration>,
) -> Answer {
    let (volume, clear_bitmap) = (VolumeNumber(ask.volume), ask.clear_bitmap);
    of.operate(&resource, |_| Ok(Verb::NewGeneration { volume, clear_bitmap })).await
}

async fn set(of: State<Context>, resource: Path<String>, Input(ask): Input<Set>) -> Answer {
    of.operate(&resource, |of| {
        let peer = of.peer(ask.peer.as_deref())?;
        let protocol = ask.protocol.ok_or_else(|| Refused::bad("nothing is set", "set protocol"))?;
        Ok(Verb::Protocol { peer, mode: protocol.into() })
    })
    .await
}

impl Context {
    fn find(&self, name: &str) -> Result<&Resource, Refused> {
        let found = self.view.node.resources.iter().find(|resource| resource.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.view.node.resources.iter().map(|known| known.name.as_str()).collect();
            Refused::not_found(
                format!("there is no resource `{name}` on this node"),
                format!("the resources are: {}", names.join(", ")),
            )
        })
    }

    fn peer(&self, name: Option<&str>) -> Result<Option<NodeId>, Refused> {
        let Some(name) = name else { return Ok(None) };
        let own = self.view.node.name.as_str();
        let others = || self.view.node.config.nodes.iter().filter(|node| node.name != own);
        let found = others().find(|node| node.name == name).map(|node| node.id);
        found.map(Some).ok_or_else(|| {
            let names: Vec<&str> = others().map(|node| node.name.as_str()).collect();
            Refused::not_found(
                format!("there is no peer `{name}`"),
                format!("the peers of {own} are: {}", names.join(", ")),
            )
        })
    }

    async fn hold_up(&self, resource: &str, ask: &PauseSync, paused: bool) -> Answer {
        let volume = ask.volume.map(VolumeNumber);
        let verb = |of: &Self| Ok(Verb::PauseSync { volume, peer: of.peer(ask.peer.as_deref())?, paused });
        self.operate(resource, verb).await
    }

    async fn operate(&self, name: &str, verb: impl FnOnce(&Self) -> Result<Verb, Refused>) -> Answer {
        let resource = self.find(name)?;
        let verb = verb(self)?;
        tracing::info!(resource = name, ?verb, "an operator asks");
        resource.operate(verb).await?;
        let gone = || Refused::conflict("the resource has stopped", "start the node again");
        let report = resource.report().await.ok_or_else(gone)?;
        Ok(Json(Done { resource: self.view.picture(report) }))
    }
}

type Answer = Result<Json<Done>, Refused>;

/// What goes wrong, with its status code.
struct Refused {
    code: StatusCode,
    failure: Failure,
}

impl Refused {
    fn new(code: StatusCode, error: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, failure: Failure { error: error.into(), remedy: remedy.into() } }
    }

    fn bad(error: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, remedy)
    }

    fn not_found(error: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error, remedy)
    }

    fn conflict(error: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, error, remedy)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::conflict(refusal.what, refusal.remedy)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.code, Json(self.failure)).into_response()
    }
}

/// The JSON of a request, whatever its content type; an empty body asks for the defaults.
struct Input<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Input<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let read = Bytes::from_request(request, state).await;
        let body = read.map_err(|error| Refused::bad(error.body_text(), "send a short JSON object"))?;
        let body = if body.is_empty() { b"{}".as_slice() } else { &body };
        let parsed = serde_json::from_slice(body);
        parsed
            .map(Self)
            .map_err(|error| Refused::bad(error.to_string(), "see docs/admin-api.md for the keys"))
    }
}

/// In bytes: a request is a small object.
const BODY_MAX: usize = 4096;

/// Lines that wait for a reader; further ones wait as events, and events that a slow reader misses are made up for.
const LINES_MAX: usize = 64;
