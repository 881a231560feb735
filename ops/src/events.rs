//! The stream of changes, in the words of `drbdsetup events2`: `change connection name:db peer-node-id:1 …`.
//!
//! It begins with what exists and `exists -`. A [`Follower`] holds the picture that its reader has by now and tells
//! what a new event or a new picture changes in it.

use std::{collections::BTreeMap, fmt};

use replication::Event;
use serde::{Serialize, ser::SerializeMap};
use serde_json::Value;

use crate::status::{Connection, Resource};

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was there when the stream began.
    Exists,
    /// It is new.
    Create,
    /// Something about it changed.
    Change,
    /// It is gone.
    Destroy,
}

/// One line of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What happened.
    pub action: Action,
    /// To what: `resource`, `device`, `connection`, `peer-device`, `session`; `-` ends what exists.
    pub object: &'static str,
    /// What names it and how it stands now, in order.
    pub fields: Vec<(&'static str, Value)>,
}

/// What one reader of the stream knows.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    resources: Vec<Resource>,
}

impl Follower {
    /// Starts with a picture: returns what exists, ended by `exists -`.
    #[must_use]
    pub fn start(resources: Vec<Resource>) -> (Self, Vec<Line>) {
        let mut lines = Vec::new();
        for object in resources.iter().flat_map(objects) {
            lines.push(object.line(Action::Exists, true));
        }
        lines.push(Line { action: Action::Exists, object: "-", fields: Vec::new() });
        (Self { resources }, lines)
    }

    /// Takes a new picture of everything: returns what differs from the last one.
    pub fn replace(&mut self, resources: Vec<Resource>) -> Vec<Line> {
        let lines = differences(&self.resources, &resources);
        self.resources = resources;
        lines
    }

    /// Takes who is logged in to a resource now: returns who came and who left.
    pub fn sessions(&mut self, resource: &Resource) -> Vec<Line> {
        self.alter(&resource.name, |known| known.sessions.clone_from(&resource.sessions))
    }

    /// Takes an event of a resource: returns what it changes.
    pub fn event(&mut self, resource: &str, event: &Event) -> Vec<Line> {
        self.alter(resource, |known| apply(known, event))
    }

    fn alter(&mut self, resource: &str, change: impl FnOnce(&mut Resource)) -> Vec<Line> {
        let Some(known) = self.resources.iter_mut().find(|known| known.name == resource) else {
            return Vec::new();
        };
        let before = known.clone();
        change(known);
        differences(std::slice::from_ref(&before), std::slice::from_ref(known))
    }
}

fn apply(resource: &mut Resource, event: &Event) {
    let peer_of = |resource: &mut Resource, peer: &replication::NodeId, change: &dyn Fn(&mut Connection)| {
        resource.connections.iter_mut().filter(|known| known.peer_node_id == peer.0).for_each(change);
    };
    match event {
        Event::Role(role) => resource.role = *role,
        Event::Disk { volume, state } => {
            let devices = resource.devices.iter_mut().filter(|device| device.volume == volume.0);
            devices.for_each(|device| device.disk_state = *state);
        }
        Event::Connection { peer, state } => {
            peer_of(resource, peer, &|known| known.connection_state = *state);
        }
        Event::PeerRole { peer, role } => peer_of(resource, peer, &|known| known.peer_role = *role),
        Event::PeerDisk { peer, volume, disk, replication } => peer_of(resource, peer, &|known| {
            for device in known.peer_devices.iter_mut().filter(|device| device.volume == volume.0) {
                (device.peer_disk_state, device.replication_state) = (*disk, *replication);
            }
        }),
        // What front ends report to initiators; the states above tell operators why.
        Event::Serves { .. } | Event::SlowDisk { .. } | Event::SplitBrainSettled { .. } => {}
    }
}

/// An object of the stream: what names it and how it stands.
#[derive(PartialEq)]
struct Object {
    kind: &'static str,
    key: Vec<(&'static str, Value)>,
    state: Vec<(&'static str, Value)>,
}

impl Object {
    fn line(&self, action: Action, with_state: bool) -> Line {
        let state = if with_state { self.state.as_slice() } else { &[] };
        Line { action, object: self.kind, fields: self.key.iter().chain(state).cloned().collect() }
    }

    /// Objects are compared by this.
    fn id(&self) -> (&'static str, String) {
        (self.kind, format!("{:?}", self.key))
    }
}

fn objects(resource: &Resource) -> Vec<Object> {
    let key = |more: &[(&'static str, Value)]| {
        let name = [("name", Value::from(resource.name.as_str()))];
        name.into_iter().chain(more.iter().cloned()).collect::<Vec<_>>()
    };
    let peer_key = |peer: &Connection| {
        [("peer-node-id", Value::from(peer.peer_node_id)), ("conn-name", Value::from(peer.name.as_str()))]
    };
    let mut objects = vec![Object {
        kind: "resource",
        key: key(&[]),
        state: vec![("role", resource.role.name().into()), ("suspended", resource.suspended.into())],
    }];
    objects.extend(resource.connections.iter().map(|peer| Object {
        kind: "connection",
        key: key(&peer_key(peer)),
        state: vec![
            ("connection", peer.connection_state.name().into()),
            ("role", peer.peer_role.name().into()),
        ],
    }));
    objects.extend(resource.devices.iter().map(|device| Object {
        kind: "device",
        key: key(&[("volume", device.volume.into())]),
        state: vec![
            ("disk", device.disk_state.name().into()),
            ("client", device.client.into()),
            ("quorum", device.quorum.into()),
        ],
    }));
    for peer in &resource.connections {
        let [id, name] = peer_key(peer);
        objects.extend(peer.peer_devices.iter().map(|device| Object {
            kind: "peer-device",
            key: key(&[id.clone(), name.clone(), ("volume", device.volume.into())]),
            state: vec![
                ("replication", device.replication_state.name().into()),
                ("peer-disk", device.peer_disk_state.name().into()),
                ("peer-client", device.peer_client.into()),
                ("resync-suspended", device.resync_suspended.as_str().into()),
            ],
        }));
    }
    objects.extend(resource.sessions.iter().map(|session| Object {
        kind: "session",
        key: key(&[
            ("transport", session.transport.as_str().into()),
            ("initiator", session.initiator.as_str().into()),
            ("address", session.address.as_str().into()),
        ]),
        state: Vec::new(),
    }));
    objects
}

/// What is gone, children first, then what is new or changed, parents first.
fn differences(before: &[Resource], after: &[Resource]) -> Vec<Line> {
    let before: Vec<Object> = before.iter().flat_map(objects).collect();
    let after: Vec<Object> = after.iter().flat_map(objects).collect();
    let index = |objects: &[Object]| -> BTreeMap<_, usize> {
        objects.iter().enumerate().map(|(place, object)| (object.id(), place)).collect()
    };
    let (old, new) = (index(&before), index(&after));
    let gone = before.iter().rev().filter(|object| !new.contains_key(&object.id()));
    let mut lines: Vec<Line> = gone.map(|object| object.line(Action::Destroy, false)).collect();
    for object in &after {
        match old.get(&object.id()) {
            None => lines.push(object.line(Action::Create, true)),
            Some(&place) if before[place] != *object => lines.push(object.line(Action::Change, true)),
            Some(_) => {}
        }
    }
    lines
}

impl Action {
    const fn name(self) -> &'static str {
        match self {
            Self::Exists => "exists",
            Self::Create => "create",
            Self::Change => "change",
            Self::Destroy => "destroy",
        }
    }
}

/// As `drbdsetup events2` prints it.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.action.name(), self.object)?;
        for (key, value) in &self.fields {
            match value {
                Value::Bool(truth) => write!(f, " {key}:{}", if *truth { "yes" } else { "no" })?,
                Value::String(text) => write!(f, " {key}:{text}")?,
                other => write!(f, " {key}:{other}")?,
            }
        }
        Ok(())
    }
}

/// As one JSON object: `event`, `object`, and the fields.
impl Serialize for Line {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2 + self.fields.len()))?;
        map.serialize_entry("event", self.action.name())?;
        map.serialize_entry("object", self.object)?;
        for (key, value) in &self.fields {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use block::VolumeNumber;
    use replication::{ConnectionState, DiskState, NodeId, ReplicationState, Role};

    use super::*;
    use crate::status::tests::{resource, session};

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::to_string).collect()
    }

    /// The stream begins as that of `drbdsetup events2` does.
    #[test]
    fn what_exists_comes_first() {
        let (_, lines) = Follower::start(vec![resource()]);
        assert_eq!(
            texts(&lines),
            [
                "exists resource name:db role:Primary suspended:no",
                "exists connection name:db peer-node-id:1 conn-name:bravo connection:Connected role:Secondary",
                "exists connection name:db peer-node-id:7 conn-name:charlie connection:Connected role:Secondary",
                "exists device name:db volume:0 disk:UpToDate client:no quorum:yes",
                "exists peer-device name:db peer-node-id:1 conn-name:bravo volume:0 replication:SyncSource \
                 peer-disk:Inconsistent peer-client:no resync-suspended:no",
                "exists peer-device name:db peer-node-id:7 conn-name:charlie volume:0 replication:Established \
                 peer-disk:Diskless peer-client:yes resync-suspended:no",
                "exists session name:db transport:iscsi initiator:iqn.1993-08.org.debian:01:host1 \
                 address:127.0.0.1:50000",
                "exists -",
            ],
        );
    }

    /// Each event of the core is one line, and one that changes nothing is none.
    #[test]
    fn events_become_lines() {
        let (mut follower, _) = Follower::start(vec![resource()]);
        let (bravo, volume) = (NodeId(1), VolumeNumber(0));
        let lost = Event::Connection { peer: bravo, state: ConnectionState::Connecting };
        for (event, line) in [
            (Event::Role(Role::Secondary), "change resource name:db role:Secondary suspended:no"),
            (
                Event::Disk { volume, state: DiskState::Failed },
                "change device name:db volume:0 disk:Failed client:no quorum:yes",
            ),
            (
                lost.clone(),
                "change connection name:db peer-node-id:1 conn-name:bravo connection:Connecting role:Secondary",
            ),
            (
                Event::PeerRole { peer: bravo, role: Role::Unknown },
                "change connection name:db peer-node-id:1 conn-name:bravo connection:Connecting role:Unknown",
            ),
            (
                Event::PeerDisk {
                    peer: bravo,
                    volume,
                    disk: DiskState::DUnknown,
                    replication: ReplicationState::Off,
                },
                "change peer-device name:db peer-node-id:1 conn-name:bravo volume:0 replication:Off \
                 peer-disk:DUnknown peer-client:no resync-suspended:no",
            ),
        ] {
            assert_eq!(texts(&follower.event("db", &event)), [line]);
        }
        assert_eq!(follower.event("db", &lost), []);
        assert_eq!(follower.event("db", &Event::Serves { able: false }), []);
        assert_eq!(follower.event("mail", &lost), []);
    }

    /// A new picture tells who came, who left and what is gone, children before their parents.
    #[test]
    fn pictures_are_compared() {
        let (mut follower, _) = Follower::start(vec![resource()]);
        let mut changed = resource();
        changed.sessions = vec![session("iqn.2026-11.com.example:new")];
        assert_eq!(
            texts(&follower.sessions(&changed)),
            [
                "destroy session name:db transport:iscsi initiator:iqn.1993-08.org.debian:01:host1 \
                 address:127.0.0.1:50000",
                "create session name:db transport:iscsi initiator:iqn.2026-11.com.example:new \
                 address:127.0.0.1:50000",
            ],
        );
        assert_eq!(follower.replace(vec![changed]), []);
        let gone = texts(&follower.replace(Vec::new()));
        assert_eq!(gone.len(), 7);
        assert_eq!(gone.last().map(String::as_str), Some("destroy resource name:db"));
        assert!(gone[0].starts_with("destroy session"), "{gone:?}");
        assert_eq!(
            texts(&follower.replace(vec![resource()]))[0],
            "create resource name:db role:Primary suspended:no"
        );
    }

    #[test]
    fn json_lines_have_the_same_fields() {
        let (mut follower, lines) = Follower::start(vec![resource()]);
        let json = serde_json::to_value(&lines[3]).expect("it serialises");
        assert_eq!(
            json,
            serde_json::json!({
                "event": "exists", "object": "device", "name": "db", "volume": 0,
                "disk": "UpToDate", "client": false, "quorum": true,
            }),
        );
        let end = serde_json::to_string(lines.last().expect("it ends")).expect("it serialises");
        assert_eq!(end, r#"{"event":"exists","object":"-"}"#);
        let destroyed = serde_json::to_value(&follower.replace(Vec::new())[0]).expect("it serialises");
        assert_eq!(destroyed["event"], "destroy");
    }
}
