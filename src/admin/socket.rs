//! The admin socket: a Unix socket that root and the node's own user may use, and nobody else.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::Mode,
    process::{geteuid, umask},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use super::{View, api, http};

/// A socket that listens. Its file goes when this does.
#[derive(Debug)]
pub struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Listens at a path, with mode 0600. The file of a node that is gone is replaced, and its directory is created.
    ///
    /// The process's umask changes for the moment of it: call it before other threads create files.
    ///
    /// # Errors
    /// When another node listens there, when something that is no socket is there, or when it cannot be created.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                let message =
                    "there is something else than a socket: remove it, or set `admin` to another path";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                let message = "a node listens there already: stop it, or set `admin` to another path";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            Ok(_) => fs::remove_file(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // The mode is right from the first moment on.
        let before = umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers until the node stops.
    pub async fn serve(self, view: Arc<View>, stop: CancellationToken) {
        let router = api::router(view, stop.clone());
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => return,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    super::pause_after(&error).await;
                    continue;
                }
            };
            if !may_ask(&stream) {
                continue;
            }
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                tracing::warn!(
                    "the admin socket has {CONNECTIONS_MAX} connections already; one more is closed"
                );
                continue;
            };
            let (router, stop) = (router.clone(), stop.clone());
            tokio::spawn(async move {
                http::serve(stream, router, stop).await;
                drop(place);
            });
        }
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the process at the other end is root's, or of the same user as this one.
fn may_ask(stream: &UnixStream) -> bool {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 || peer.uid() == geteuid().as_raw() => true,
        Ok(peer) => {
            tracing::warn!(
                uid = peer.uid(),
                "a user who is neither root nor the node's asked by the admin socket"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the admin socket cannot tell who asks");
            false
        }
    }
}

const CONNECTIONS_MAX: usize = 64;
