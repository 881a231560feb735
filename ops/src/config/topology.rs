//! The cluster and its nodes: `[cluster]`, `[[node]]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    path::Path,
};

use replication::NodeId;
use uuid::Uuid;

use super::{
    keys,
    model::{Address, Advertise, Cluster, Node, Tls},
    names,
    scope::{At, Scope},
    values::{Fault, address, named, path, text, whole},
};

pub(super) fn cluster(root: &Scope<'_>, base: &Path) -> Option<Cluster> {
    if !root.has("cluster") {
        root.missing("cluster");
    }
    let scope = root.table("cluster", &keys::CLUSTER)?;
    let name = scope.require("name", named(names::plain));
    let secret_file = scope.get("secret-file", path(base)).map(|at| at.value);
    if !scope.has("secret-file") && root.count("node") > 1 {
        scope.missing("secret-file");
    }
    let id = scope.get("id", |value| {
        let text = text(value)?;
        Uuid::try_parse(&text).map_err(|_| Fault::new("this is not a UUID", "write what uuidgen prints"))
    });
    let tls = scope.table("tls", &keys::TLS).and_then(|scope| {
        scope.problems().error(
            &scope.span,
            "this version does not encrypt the connections between nodes",
            "remove it, and let nodes talk over a network that you trust",
        );
        let [ca, certificate, key] = ["ca", "certificate", "key"].map(|key| scope.require(key, path(base)));
        Some(Tls { ca: ca?.value, certificate: certificate?.value, key: key?.value })
    });
    Some(Cluster { name: name?.value, secret_file, id: id.map(|at| at.value), tls })
}

/// The id of every node that has a name, where it has one; so that one mistake is noted once.
pub(super) type Ids = BTreeMap<String, Option<NodeId>>;

/// The nodes, ordered by id. One whose name or id is not usable is noted and left out.
pub(super) fn nodes(root: &Scope<'_>, base: &Path) -> (Vec<Node>, Ids) {
    let scopes = root.tables("node", &keys::NODE);
    if scopes.is_empty() {
        root.missing("node");
    }
    let mut seen = Seen::default();
    let alone = scopes.len() == 1;
    let mut nodes: Vec<Node> =
        scopes.iter().filter_map(|scope| node(scope, base, alone, &mut seen)).collect();
    nodes.sort_by_key(|node| node.id);
    let mut ids: Ids =
        scopes.iter().filter_map(|scope| Some((scope.peek("name")?.to_owned(), None))).collect();
    ids.extend(nodes.iter().map(|node| (node.name.clone(), Some(node.id))));
    (nodes, ids)
}

/// What no two nodes share.
#[derive(Default)]
struct Seen {
    names: BTreeSet<String>,
    ids: BTreeMap<u64, String>,
    replication: BTreeMap<Address, String>,
}

fn node(scope: &Scope<'_>, base: &Path, alone: bool, seen: &mut Seen) -> Option<Node> {
    let name = scope.require("name", named(names::plain));
    let id = scope.require("id", whole(0, 31));
    let replication = scope.get("replication", address);
    if !alone && !scope.has("replication") {
        scope.missing("replication");
    }
    let iscsi = addresses(scope, "iscsi");
    let nvme_tcp = addresses(scope, "nvme-tcp");
    let metrics = scope.get("metrics", address);
    let advertise = scope.table("advertise", &keys::ADVERTISE).map_or_else(Advertise::default, |scope| {
        let [iscsi, nvme_tcp] = ["iscsi", "nvme-tcp"].map(|key| told(&scope, key));
        Advertise { iscsi, nvme_tcp }
    });
    let listening: Vec<&At<Address>> =
        replication.iter().chain(&iscsi).chain(&nvme_tcp).chain(&metrics).collect();
    no_clash(scope, &listening);
    let admin = scope.get("admin", socket_path(base));
    let (name, id) = (name?, id?);
    unique(scope, &name, &id, replication.as_ref(), seen);
    if !nvme_tcp.is_empty() {
        let message = "this version does not serve NVMe/TCP";
        scope.problems().warning(&nvme_tcp[0].span, message, "hosts attach by iSCSI; nothing listens here");
    }
    let fallback = || format!("/run/evenkeel/{}.sock", name.value).into();
    Some(Node {
        id: NodeId(u8::try_from(id.value).expect("checked to be at most 31")),
        replication: replication.map(|at| at.value),
        iscsi: values(iscsi),
        nvme_tcp: values(nvme_tcp),
        advertise,
        metrics: metrics.map(|at| at.value),
        admin: admin.map_or_else(fallback, |at| at.value),
        name: name.value,
    })
}

fn unique(
    scope: &Scope<'_>,
    name: &At<String>,
    id: &At<u64>,
    replication: Option<&At<Address>>,
    seen: &mut Seen,
) {
    if !seen.names.insert(name.value.clone()) {
        let message = format!("there is a node `{}` already", name.value);
        scope.problems().error(&name.span, message, "give each node a name of its own");
    }
    if let Some(other) = seen.ids.insert(id.value, name.value.clone()) {
        let free = (0..=31).find(|id| !seen.ids.contains_key(id));
        let help =
            free.map_or("remove a node: there may be 32".to_owned(), |free| format!("write id = {free}"));
        scope.problems().error(&id.span, format!("id {} is that of `{other}`", id.value), help);
    }
    let Some(replication) = replication else { return };
    if matches!(&replication.value, Address::Ip(address) if address.ip().is_unspecified()) {
        let message = "peers cannot reach a node by a wildcard address";
        scope.problems().error(&replication.span, message, "write the address by which they reach it");
    } else if let Some(other) = seen.replication.insert(replication.value.clone(), name.value.clone()) {
        let message = format!("`{other}` has this replication address");
        scope.problems().error(&replication.span, message, "give each node an address or a port of its own");
    }
}

/// Notes listeners of one node that cannot both have their port.
fn no_clash(scope: &Scope<'_>, listening: &[&At<Address>]) {
    for (at, second) in listening.iter().enumerate() {
        if listening[..at].iter().any(|first| clash(&first.value, &second.value)) {
            let message = format!("this node listens on {} already", second.value);
            scope.problems().error(&second.span, message, "choose another port");
        }
    }
}

fn clash(a: &Address, b: &Address) -> bool {
    let covers = |a: &SocketAddr, b: &SocketAddr| match (a.ip(), b.ip()) {
        (IpAddr::V4(wide), IpAddr::V4(_)) => wide.is_unspecified(),
        (IpAddr::V6(wide), _) => wide.is_unspecified(),
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
    };
    match (a, b) {
        (Address::Ip(a), Address::Ip(b)) => a == b || a.port() == b.port() && (covers(a, b) || covers(b, a)),
        _ => a == b,
    }
}

fn addresses(scope: &Scope<'_>, key: &str) -> Vec<At<Address>> {
    scope.list(key, names::address).map_or_else(Vec::new, |at| at.value)
}

/// Addresses that others are told.
fn told(scope: &Scope<'_>, key: &str) -> Vec<Address> {
    let reachable = |text: &str| match names::address(text)? {
        Address::Ip(address) if address.ip().is_unspecified() => Err(Fault::new(
            "initiators cannot reach a node by a wildcard address",
            "write the address by which they reach it",
        )),
        address => Ok(address),
    };
    scope.list(key, reachable).map_or_else(Vec::new, |at| values(at.value))
}

fn values<T>(list: Vec<At<T>>) -> Vec<T> {
    list.into_iter().map(|at| at.value).collect()
}

/// A path that fits the address of a Unix socket (unix(7): 108 bytes with the NUL at the end).
fn socket_path(base: &Path) -> impl Fn(&toml::de::DeValue<'_>) -> Result<std::path::PathBuf, Fault> {
    let read = path(base);
    move |value| {
        let path = read(value)?;
        let len = path.as_os_str().len();
        if len <= SOCKET_PATH_MAX {
            return Ok(path);
        }
        let message = format!(
            "a Unix socket's path has at most {SOCKET_PATH_MAX} bytes, and {} has {len}",
            path.display()
        );
        Err(Fault::new(message, "choose a shorter path, e.g. /run/evenkeel/alpha.sock"))
    }
}

const SOCKET_PATH_MAX: usize = 107;
