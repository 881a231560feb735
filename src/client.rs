//! The command line's way to a running node: HTTP on its admin socket.

use std::{
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
};

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use ops::admin::{Failure, ROOT};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::net::UnixStream;

/// Why a node did not do what was asked.
#[derive(Debug, Error)]
pub enum ClientError {
    /// There is no telling which node is meant.
    #[error("{found}; name the node's socket with --admin PATH or EVENKEEL_ADMIN")]
    Which {
        /// What was found instead of one socket.
        found: String,
    },
    /// Nobody answers at the socket.
    #[error("no node answers at {path}: {source}; {remedy}", path = path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The node refused.
    #[error("{}; {}", .0.error, .0.remedy)]
    Refused(Failure),
    /// The node stopped in the middle of an answer.
    #[error("the node at {path} closed the connection: {source}; read why in its log", path = path.display())]
    Closed {
        /// The socket.
        path: PathBuf,
        /// What was noticed.
        source: hyper::Error,
    },
    /// The answer was not understood.
    #[error("the answer of {path} was not understood: {source}; compare `evenkeel --version` with the node's",
            path = path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// What was wrong with it.
        source: serde_json::Error,
    },
    /// The time is up.
    #[error("{what} is not so after {after}; `evenkeel status` says what is in the way")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// For how long.
        after: String,
    },
}

/// A node that can be asked.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

/// The stream of changes.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    body: Incoming,
    buffer: BytesMut,
}

impl Client {
    /// The node whose socket is given, or the only one of this machine.
    ///
    /// # Errors
    /// When no socket is given and there is not exactly one in `/run/evenkeel`.
    pub fn new(admin: Option<&Path>) -> Result<Self, ClientError> {
        let path = match admin {
            Some(path) => path.to_owned(),
            None => only_socket(Path::new(SOCKETS))?,
        };
        Ok(Self { path })
    }

    /// Where it is asked.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks for something. `path` begins after the version, with a slash.
    ///
    /// # Errors
    /// When the node does not answer, or answers that it failed.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.answer(self.send(Method::GET, path, Bytes::new()).await?).await
    }

    /// Asks to do something, and returns once it is done.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        ask: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::json!(ask).to_string();
        self.answer(self.send(Method::POST, path, body.into()).await?).await
    }

    /// Asks for a stream of lines.
    ///
    /// # Errors
    /// When the node does not answer, or refuses.
    pub async fn lines(&self, path: &str) -> Result<Lines, ClientError> {
        let response = self.send(Method::GET, path, Bytes::new()).await?;
        let response = self.good(response).await?;
        Ok(Lines { path: self.path.clone(), body: response.into_body(), buffer: BytesMut::new() })
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.path).await.map_err(|error| self.unreachable(error))?;
        let closed = |source| ClientError::Closed { path: self.path.clone(), source };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(closed)?;
        // It ends with the answer; what goes wrong with it, the answer tells too.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(format!("{ROOT}{path}"))
            .header(header::HOST, "node")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .expect("names in paths are percent-encoded");
        sender.send_request(request).await.map_err(closed)
    }

    async fn answer<T: DeserializeOwned>(&self, response: Response<Incoming>) -> Result<T, ClientError> {
        let body = self.body(self.good(response).await?).await?;
        serde_json::from_slice(&body)
            .map_err(|source| ClientError::Answer { path: self.path.clone(), source })
    }

    /// The answer, unless it says that something failed.
    async fn good(&self, response: Response<Incoming>) -> Result<Response<Incoming>, ClientError> {
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let body = self.body(response).await?;
        let failure = serde_json::from_slice(&body);
        Err(match failure {
            Ok(failure) => ClientError::Refused(failure),
            Err(source) => ClientError::Answer { path: self.path.clone(), source },
        })
    }

    async fn body(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let collected = response.into_body().collect().await;
        collected
            .map(http_body_util::Collected::to_bytes)
            .map_err(|source| ClientError::Closed { path: self.path.clone(), source })
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        let remedy = match source.kind() {
            io::ErrorKind::PermissionDenied => "ask as root, or as the user that the node runs as",
            io::ErrorKind::NotFound => {
                "is this the `admin` path of the node's configuration, and does the node run?"
            }
            _ => "does the node run?",
        };
        ClientError::Unreachable { path: self.path.clone(), source, remedy }
    }
}

impl Lines {
    /// The next line without its end; `None` once the stream has ended.
    ///
    /// # Errors
    /// When the node closes the connection in the middle.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                return Ok(Some(line.freeze()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(source)) => return Err(ClientError::Closed { path: self.path.clone(), source }),
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().unwrap_or_default()),
            }
        }
    }
}

/// A name as a part of a path (RFC 3986 2.1).
#[must_use]
pub fn encoded(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn only_socket(directory: &Path) -> Result<PathBuf, ClientError> {
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut sockets: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "sock")).collect();
    sockets.sort();
    match &mut sockets[..] {
        [socket] => Ok(std::mem::take(socket)),
        [] => Err(ClientError::Which { found: format!("no node's socket is in {}", directory.display()) }),
        sockets => {
            let names: Vec<String> = sockets.iter().map(|socket| socket.display().to_string()).collect();
            Err(ClientError::Which { found: format!("several nodes run here: {}", names.join(", ")) })
        }
    }
}

const SOCKETS: &str = "/run/evenkeel";

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of resources that nobody should choose do not change what is asked.
    #[test]
    fn names_in_paths() {
        assert_eq!(encoded("db-1.x_y"), "db-1.x_y");
        assert_eq!(encoded("../a b?c=ü"), "..%2Fa%20b%3Fc%3D%C3%BC");
    }

    /// Without `--admin`, one node is found and two are not guessed between.
    #[test]
    fn the_only_socket_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let error = only_socket(directory.path()).unwrap_err().to_string();
        assert!(error.contains("no node's socket") && error.contains("--admin"), "{error}");
        fs::write(directory.path().join("alpha.sock"), "").unwrap();
        fs::write(directory.path().join("notes.txt"), "").unwrap();
        assert_eq!(only_socket(directory.path()).unwrap(), directory.path().join("alpha.sock"));
        fs::write(directory.path().join("bravo.sock"), "").unwrap();
        let error = only_socket(directory.path()).unwrap_err().to_string();
        assert!(error.contains("alpha.sock") && error.contains("bravo.sock"), "{error}");
    }
}
