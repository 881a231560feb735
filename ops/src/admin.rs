//! The admin API: JSON over HTTP on a Unix socket, the same for the command line and for scripts.
//!
//! ```text
//! GET  /v1/status[?resource=NAME]                     -> [status::Resource]
//! GET  /v1/events[?now=true][&text=true]              -> events::Line after line, without end
//! POST /v1/resources/NAME/primary     Promote         -> Done
//! POST /v1/resources/NAME/secondary   Demote          -> Done
//! POST /v1/resources/NAME/connect     Connect         -> Done
//! POST /v1/resources/NAME/disconnect  Disconnect      -> Done
//! POST /v1/resources/NAME/set         Set             -> Done
//! POST /v1/resources/NAME/pause-sync         PauseSync         -> Done
//! POST /v1/resources/NAME/resume-sync        PauseSync         -> Done
//! POST /v1/resources/NAME/detach             Detach            -> Done
//! POST /v1/resources/NAME/attach             Attach            -> Done
//! POST /v1/resources/NAME/invalidate         Invalidate        -> Done
//! POST /v1/resources/NAME/invalidate-remote  InvalidateRemote  -> Done
//! POST /v1/resources/NAME/new-generation     NewGeneration     -> Done
//! ```
//!
//! What goes wrong comes as [`Failure`], with 400, 404 or 409. `curl --unix-socket PATH http://node/v1/status` works.

use serde::{Deserialize, Serialize};

use crate::status::Resource;

/// Where the API begins.
pub const ROOT: &str = "/v1";

/// The media type of the stream of events in JSON.
pub const JSON_LINES: &str = "application/x-ndjson";

/// The media type of the stream of events in text.
pub const TEXT_LINES: &str = "text/plain; charset=utf-8";

/// Of `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusQuery {
    /// Which resource; all of them where absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resource: Option<String>,
}

/// Of `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Ends after what exists.
    #[serde(default)]
    pub now: bool,
    /// Lines as `drbdsetup events2` prints them; JSON objects otherwise.
    #[serde(default)]
    pub text: bool,
}

/// Become Primary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Promote {
    /// Even if the data here may be old.
    #[serde(default)]
    pub force: bool,
}

/// Become Secondary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Demote {
    /// Even if commands have to fail for it.
    #[serde(default)]
    pub force: bool,
}

/// Want a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Connect {
    /// To this node; to every peer where absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<String>,
    /// Where the data diverged, give up what was written here.
    #[serde(default)]
    pub discard_my_data: bool,
}

/// Take a connection down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Disconnect {
    /// From this node; from every peer where absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<String>,
}

/// Hold resyncs up, or let them go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PauseSync {
    /// Of which volume; of all of them where absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub volume: Option<u16>,
    /// With this node; with every peer where absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<String>,
}

/// Go on without the local disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Detach {
    /// Of which volume.
    pub volume: u16,
    /// Even if it is in use and no other replica is good.
    #[serde(default)]
    pub force: bool,
}

/// Take the local disk back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Attach {
    /// Of which volume.
    pub volume: u16,
}

/// Give up what is here, and copy everything from a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Invalidate {
    /// Of which volume.
    pub volume: u16,
}

/// Have a peer give up what it has, and copy everything from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InvalidateRemote {
    /// Of which volume.
    pub volume: u16,
    /// Whose replica.
    pub peer: String,
}

/// Begin a new generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NewGeneration {
    /// Of which volume.
    pub volume: u16,
    /// Declare replicas that were just created to be equal.
    #[serde(default)]
    pub clear_bitmap: bool,
}

/// Change options. All of them are done, or the first that cannot be is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Set {
    /// For the connection to this node; for every connection where absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<String>,
    /// The acknowledgement mode: `A`, `B` or `C`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub protocol: Option<Protocol>,
}

/// The acknowledgement mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// Once the write was handed to the socket.
    A,
    /// Once the peer has it in memory.
    B,
    /// Once the peer's disk completed it.
    C,
}

/// It is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The resource as it stands now.
    pub resource: Resource,
}

/// It is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What stands in the way.
    pub error: String,
    /// What to do about it.
    pub remedy: String,
}

impl From<replication::AckMode> for Protocol {
    fn from(mode: replication::AckMode) -> Self {
        match mode {
            replication::AckMode::A => Self::A,
            replication::AckMode::B => Self::B,
            replication::AckMode::C => Self::C,
        }
    }
}

impl From<Protocol> for replication::AckMode {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::A => Self::A,
            Protocol::B => Self::B,
            Protocol::C => Self::C,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a script sends need not name what it leaves as it is, and a misspelled key is refused.
    #[test]
    fn requests_are_lenient_in_what_they_leave_out_only() {
        let connect: Connect = serde_json::from_str("{}").expect("nothing is needed");
        assert_eq!(connect, Connect::default());
        let connect: Connect =
            serde_json::from_str(r#"{"peer":"bravo","discard-my-data":true}"#).expect("both");
        assert_eq!(connect, Connect { peer: Some("bravo".to_owned()), discard_my_data: true });
        assert!(serde_json::from_str::<Connect>(r#"{"discard_my_data":true}"#).is_err());
        let set: Set = serde_json::from_str(r#"{"protocol":"A"}"#).expect("a protocol");
        assert_eq!(set.protocol.map(replication::AckMode::from), Some(replication::AckMode::A));
        assert!(serde_json::from_str::<Set>(r#"{"protocol":"D"}"#).is_err());
    }
}
