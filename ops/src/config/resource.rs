//! Resources: `[[resource]]` and the tables inside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use block::{BlockSize, VolumeNumber};
use replication::{
    AckMode, AfterSplitBrain, NodeId, Quorum, ReadBalancing, WithOnePrimary, WithTwoPrimaries, WithoutPrimary,
};

use super::{
    keys,
    model::{
        Allow, Chap, Connection, DiskOptions, Export, NetOptions, Node, OnIoError, Resource, ResourceOptions,
        Volume,
    },
    names,
    scope::{At, Scope},
    topology::Ids,
    values::{Fault, choice, named, path, size, small_size, text, time, truth, whole},
};

pub(super) fn resources(root: &Scope<'_>, base: &Path, nodes: &[Node], ids: &Ids) -> Vec<Resource> {
    let scopes = root.tables("resource", &keys::RESOURCE);
    if scopes.is_empty() {
        root.missing("resource");
    }
    let mut reader = Reader { base, nodes, ids, seen: Seen::default() };
    scopes.iter().filter_map(|scope| reader.resource(scope)).collect()
}

/// What no two resources share.
#[derive(Default)]
struct Seen {
    resources: BTreeSet<String>,
    iqns: BTreeMap<String, String>,
    nqns: BTreeMap<String, String>,
    paths: BTreeMap<(NodeId, PathBuf), String>,
}

struct Reader<'r> {
    base: &'r Path,
    nodes: &'r [Node],
    ids: &'r Ids,
    seen: Seen,
}

impl Reader<'_> {
    fn resource(&mut self, scope: &Scope<'_>) -> Option<Resource> {
        let name = scope.require("name", named(names::plain));
        if let Some(name) = &name
            && !self.seen.resources.insert(name.value.clone())
        {
            let message = format!("there is a resource `{}` already", name.value);
            scope.problems().error(&name.span, message, "give each resource a name of its own");
        }
        let volumes = self.volumes(scope, name.as_ref().map_or("?", |name| &name.value));
        let connection = connection(scope, &Connection::default());
        let connections = self.connections(scope, &connection);
        let disk = scope.table("disk", &keys::DISK).map_or_else(DiskOptions::default, |scope| disk(&scope));
        let options = self.options(scope);
        let export = self.export(scope, name.as_ref());
        Some(Resource { name: name?.value, volumes, connection, connections, disk, options, export: export? })
    }

    fn volumes(&mut self, scope: &Scope<'_>, resource: &str) -> Vec<Volume> {
        let scopes = scope.tables("volume", &keys::VOLUME);
        if scopes.is_empty() {
            scope.missing("volume");
        }
        let mut seen = BTreeSet::new();
        let mut volumes: Vec<Volume> =
            scopes.iter().filter_map(|scope| self.volume(scope, resource, &mut seen)).collect();
        volumes.sort_by_key(|volume| volume.number);
        volumes
    }

    fn volume(&mut self, scope: &Scope<'_>, resource: &str, seen: &mut BTreeSet<u64>) -> Option<Volume> {
        let number = scope.require("number", whole(0, LUN_MAX));
        if let Some(number) = &number
            && !seen.insert(number.value)
        {
            let free = (0..=LUN_MAX).find(|number| !seen.contains(number)).unwrap_or(LUN_MAX);
            let message = format!("there is a volume {} in this resource already", number.value);
            scope.problems().error(&number.span, message, format!("write number = {free}"));
        }
        let size = scope.require("size", volume_size);
        let block_size = scope.or("block-size", BlockSize::B512, block_size);
        let physical_block_size = physical_block_size(scope, block_size);
        if !scope.has("disks") {
            scope.missing("disks");
        }
        let shown = format!("{resource}/{}", number.as_ref().map_or(0, |number| number.value));
        let disks = self.paths(scope, "disks", &shown);
        let metadata = self.paths(scope, "metadata", &shown);
        let diskful = scope.names("disks");
        if diskful.as_ref().is_some_and(Vec::is_empty) {
            let message = "no node has a disk for this volume";
            scope.problems().error(&scope.span, message, "write disks = { NODE = \"PATH\" }");
        }
        let lacks_disk = |node: &&At<&str>| {
            diskful.as_ref().is_some_and(|diskful| diskful.iter().all(|diskful| diskful.value != node.value))
        };
        for node in scope.names("metadata").iter().flatten().filter(lacks_disk) {
            let message = format!("`{}` has no disk for this volume", node.value.escape_debug());
            scope.problems().error(&node.span, message, "name it in `disks` too, or remove it here");
        }
        Some(Volume {
            number: VolumeNumber(u16::try_from(number?.value).expect("checked to be at most LUN_MAX")),
            size: size?.value,
            block_size,
            physical_block_size,
            read_only: scope.or("read-only", false, truth),
            disks: values(disks),
            metadata: values(metadata),
        })
    }

    /// The paths by node, each used once on its node.
    fn paths(&mut self, scope: &Scope<'_>, key: &str, volume: &str) -> BTreeMap<NodeId, At<PathBuf>> {
        let read = |_: &str, path: &str| match path {
            "" => Err(Fault::new("the path is empty", "name a file or device")),
            path if path.contains('\0') => {
                Err(Fault::new("the path has a NUL in it", "name a file or device"))
            }
            path => Ok(self.base.join(path)),
        };
        let mut paths = BTreeMap::new();
        for (node, path) in scope.map(key, read) {
            let Some(id) = self.id(scope, &node) else { continue };
            let claim = (id, plain_path(&path.value));
            if let Some(other) = self.seen.paths.insert(claim, volume.to_owned()) {
                let message = format!("`{}` uses this file for volume {other} already", node.value);
                scope.problems().error(
                    &path.span,
                    message,
                    "give each volume a file of its own on each node",
                );
            }
            paths.insert(id, path);
        }
        paths
    }

    fn connections(&self, scope: &Scope<'_>, common: &Connection) -> BTreeMap<(NodeId, NodeId), Connection> {
        let mut connections = BTreeMap::new();
        for scope in scope.tables("connection", &keys::CONNECTION) {
            let connection = connection(&scope, common);
            if !scope.has("nodes") {
                scope.missing("nodes");
            }
            let Some(nodes) = scope.list("nodes", |name| Ok(name.to_owned())) else { continue };
            let ids: Vec<NodeId> = nodes.value.iter().filter_map(|node| self.id(&scope, node)).collect();
            match ids[..] {
                [a, b] if a != b => {
                    if connections.insert((a.min(b), a.max(b)), connection).is_some() {
                        let message = "there is a connection between these two already";
                        scope.problems().error(&nodes.span, message, "join the two tables");
                    }
                }
                // What is wrong with them is noted.
                _ if ids.len() < nodes.value.len() => {}
                _ => {
                    let help = "write nodes = [\"ONE\", \"ANOTHER\"]";
                    scope.problems().error(&nodes.span, "a connection is between two nodes", help);
                }
            }
        }
        connections
    }

    fn options(&self, scope: &Scope<'_>) -> ResourceOptions {
        let defaults = ResourceOptions { quorum: Quorum::default_for(self.nodes.len()), auto_promote: true };
        let Some(scope) = scope.table("options", &keys::OPTIONS) else { return defaults };
        let quorum = scope.get("quorum", choice(&[("off", Quorum::Off), ("majority", Quorum::Majority)]));
        if let Some(At { value: Quorum::Majority, span }) = &quorum
            && self.nodes.len() == 2
        {
            let message = "the majority of two nodes is both: when one is down, the other serves nothing";
            scope.problems().warning(span, message, "add a third node (it needs no disk), or write \"off\"");
        }
        ResourceOptions {
            quorum: quorum.map_or(defaults.quorum, |at| at.value),
            auto_promote: scope.or("auto-promote", defaults.auto_promote, truth),
        }
    }

    fn export(&mut self, resource: &Scope<'_>, name: Option<&At<String>>) -> Option<Export> {
        let scope = resource.table("export", &keys::EXPORT);
        let default = |kind: &str| {
            let name = name?;
            Some(At {
                value: format!("{kind}.2026-11.io.evenkeel:{}", names::as_qualified(&name.value)),
                span: name.span.clone(),
            })
        };
        let given = |key, check: fn(&str) -> Result<(), Fault>| match &scope {
            Some(scope) if scope.has(key) => scope.get(key, named(check)),
            _ => default(key),
        };
        // The keys are the names' types.
        let (iqn, nqn) = (given("iqn", names::iqn), given("nqn", names::nqn));
        let shown = name.map_or("?", |name| &name.value);
        for (given, seen) in [(&iqn, &mut self.seen.iqns), (&nqn, &mut self.seen.nqns)] {
            if let Some(given) = given
                && let Some(other) = seen.insert(given.value.clone(), shown.to_owned())
            {
                let message = format!("`{other}` is exported as {} already", given.value);
                resource.problems().error(
                    &given.span,
                    message,
                    "set iqn and nqn in [resource.export] to other names",
                );
            }
        }
        let chap = scope.as_ref().and_then(|scope| self.chap(scope, "chap", &keys::CHAP));
        let chap_mutual =
            scope.as_ref().and_then(|scope| self.chap(scope, "chap-mutual", &keys::CHAP_MUTUAL));
        if let Some(scope) = &scope {
            mutual(scope, chap.as_ref(), chap_mutual.as_ref());
        }
        let allow = scope
            .and_then(|scope| scope.list("allow", |name| names::initiator(name).map(|()| name.to_owned())));
        if let (Some(name), None, None) = (name, &chap, &allow) {
            self.warn_open(resource, name);
        }
        let listed =
            |at: At<Vec<At<String>>>| Allow::Listed(at.value.into_iter().map(|at| at.value).collect());
        Some(Export {
            iqn: iqn?.value,
            nqn: nqn?.value,
            chap: chap.map(|at| at.value),
            chap_mutual: chap_mutual.map(|at| at.value),
            allow: allow.map_or(Allow::Anyone, listed),
        })
    }

    fn chap(&self, scope: &Scope<'_>, key: &str, section: &'static keys::Section) -> Option<At<Chap>> {
        let scope = scope.table(key, section)?;
        let user = scope.require("user", |value| {
            let user = text(value)?;
            let fits = user.len() <= 255 && !user.chars().any(char::is_control);
            let fault = || Fault::new("this is not a user's name", "write at most 255 bytes of text");
            fits.then_some(user).ok_or_else(fault)
        });
        let secret_file = scope.require("secret-file", path(self.base));
        Some(At { value: Chap { user: user?.value, secret_file: secret_file?.value }, span: scope.span })
    }

    /// Warns where anyone on a network may use the resource.
    fn warn_open(&self, scope: &Scope<'_>, name: &At<String>) {
        let open = self.nodes.iter().flat_map(|node| &node.iscsi).find(|address| !address.is_loopback());
        if let Some(address) = open {
            let message = format!("anyone who reaches {address} may read and write `{}`", name.value);
            scope.problems().warning(&name.span, message, "set `allow` or `chap` in [resource.export]");
        }
    }

    fn id(&self, scope: &Scope<'_>, node: &At<String>) -> Option<NodeId> {
        let known = self.ids.get(&node.value);
        if known.is_none() {
            let names = || self.ids.keys().map(String::as_str);
            let all = || format!("the nodes are {}", names().collect::<Vec<_>>().join(", "));
            let help = names::nearest(&node.value, names())
                .map_or_else(all, |near| format!("did you mean `{near}`?"));
            scope.problems().error(
                &node.span,
                format!("there is no node `{}`", node.value.escape_debug()),
                help,
            );
        }
        known.copied().flatten()
    }
}

/// Notes a proof by the target that stands alone, or has the initiators' secret (RFC 7143 9.2.1 forbids that).
fn mutual(scope: &Scope<'_>, chap: Option<&At<Chap>>, mutual: Option<&At<Chap>>) {
    let Some(mutual) = mutual else { return };
    if !scope.has("chap") {
        let message = "the target proves itself only to initiators that do";
        scope.problems().error(&mutual.span, message, "set `chap` too");
    }
    if chap.is_some_and(|chap| plain_path(&chap.value.secret_file) == plain_path(&mutual.value.secret_file)) {
        let message = "both directions have the same secret";
        scope.problems().error(&mutual.span, message, "make another secret, in another file");
    }
}

fn connection(scope: &Scope<'_>, common: &Connection) -> Connection {
    Connection {
        protocol: scope.or("protocol", common.protocol, choice(&PROTOCOLS)),
        net: scope
            .table("net", &keys::NET)
            .map_or_else(|| common.net.clone(), |scope| net(&scope, &common.net)),
    }
}

fn net(scope: &Scope<'_>, common: &NetOptions) -> NetOptions {
    let [tenth, minute, hours] =
        [Duration::from_millis(100), Duration::from_mins(1), Duration::from_hours(2)];
    let narrow = |number: u64| u32::try_from(number).expect("checked to be small");
    let options = NetOptions {
        timeout: scope.or("timeout", common.timeout, time(tenth, minute)),
        ko_count: scope.get("ko-count", whole(0, 200)).map_or(common.ko_count, |at| narrow(at.value)),
        ping_int: scope.or("ping-int", common.ping_int, time(tenth, hours)),
        ping_timeout: scope.or("ping-timeout", common.ping_timeout, time(tenth, minute)),
        connect_int: scope.or("connect-int", common.connect_int, time(tenth, hours)),
        max_buffers: scope
            .get("max-buffers", whole(32, 131_072))
            .map_or(common.max_buffers, |at| narrow(at.value)),
        sndbuf_size: scope.or("sndbuf-size", common.sndbuf_size, small_size(SOCKET_BUFFER_MAX)),
        rcvbuf_size: scope.or("rcvbuf-size", common.rcvbuf_size, small_size(SOCKET_BUFFER_MAX)),
        after_split_brain: after_split_brain(scope, common.after_split_brain),
    };
    if options.ping_timeout > options.timeout && scope.has("ping-timeout") {
        let message = "a peer that may be silent for longer than `timeout` is dropped for that first";
        scope.problems().warning(&scope.span, message, "keep ping-timeout below timeout");
    }
    options
}

fn after_split_brain(scope: &Scope<'_>, common: AfterSplitBrain) -> AfterSplitBrain {
    let without = WithoutPrimary::ALL.map(|policy| (policy.name(), policy));
    let one = WithOnePrimary::ALL.map(|policy| (policy.name(), policy));
    let two = WithTwoPrimaries::ALL.map(|policy| (policy.name(), policy));
    AfterSplitBrain {
        without_primary: scope.or("after-sb-0pri", common.without_primary, policy(&without)),
        with_one_primary: scope.or("after-sb-1pri", common.with_one_primary, policy(&one)),
        with_two_primaries: scope.or("after-sb-2pri", common.with_two_primaries, policy(&two)),
    }
}

/// A policy by DRBD's name. What DRBD has besides is refused with the reason.
fn policy<T: Copy>(policies: &[(&'static str, T)]) -> impl Fn(&toml::de::DeValue<'_>) -> Result<T, Fault> {
    move |value| {
        let chosen = choice(policies)(value);
        let Some(name) = value.as_str() else { return chosen };
        let reason = match name {
            "violently-as0p" => "it would change the data under a Primary that goes on",
            "discard-local" | "discard-remote" => "the file is the same on every node, so it names no side",
            _ if name.starts_with("discard-node-") => "which node is right is not known before the split",
            _ => return chosen,
        };
        chosen.map_err(|fault| Fault::new(format!("\"{name}\" is not offered: {reason}"), fault.help))
    }
}

fn disk(scope: &Scope<'_>) -> DiskOptions {
    let common = DiskOptions::default();
    let narrow = |number: u64| u32::try_from(number).expect("checked to be small");
    DiskOptions {
        on_io_error: scope.or(
            "on-io-error",
            common.on_io_error,
            choice(&[("detach", OnIoError::Detach), ("pass_on", OnIoError::PassOn)]),
        ),
        disk_timeout: scope.or(
            "disk-timeout",
            common.disk_timeout,
            time(Duration::ZERO, Duration::from_mins(10)),
        ),
        al_extents: scope
            .get("al-extents", whole(67, 65_534))
            .map_or(common.al_extents, |at| narrow(at.value)),
        read_balancing: scope.or("read-balancing", common.read_balancing, choice(&READ_BALANCING)),
    }
}

fn volume_size(value: &toml::de::DeValue<'_>) -> Result<u64, Fault> {
    let bytes = size(value)?;
    match bytes {
        0 => Err(Fault::new("a volume has at least 4096 bytes", "write a size, e.g. \"10GiB\"")),
        _ if bytes > SIZE_MAX => Err(Fault::new("a volume has at most 1PiB", "write a smaller size")),
        _ if !bytes.is_multiple_of(SIZE_STEP) => {
            let near = crate::quantity::show_size(bytes.next_multiple_of(SIZE_STEP));
            Err(Fault::new(format!("{bytes} bytes are not a multiple of 4096"), format!("write \"{near}\"")))
        }
        _ => Ok(bytes),
    }
}

fn block_size(value: &toml::de::DeValue<'_>) -> Result<BlockSize, Fault> {
    let bytes = size(value)?;
    let fault = || Fault::new(format!("a block has 512 or 4096 bytes, not {bytes}"), "write 512 or 4096");
    BlockSize::from_bytes(bytes).ok_or_else(fault)
}

/// The logical block, where nothing else is said.
fn physical_block_size(scope: &Scope<'_>, logical: BlockSize) -> BlockSize {
    let Some(physical) = scope.get("physical-block-size", block_size) else { return logical };
    if physical.value < logical {
        let message = format!("a physical block of {} bytes holds no logical block", physical.value.bytes());
        let help = format!("write {}, or leave it out", logical.bytes());
        scope.problems().error(&physical.span, message, help);
    }
    physical.value
}

fn values(paths: BTreeMap<NodeId, At<PathBuf>>) -> BTreeMap<NodeId, PathBuf> {
    paths.into_iter().map(|(id, at)| (id, at.value)).collect()
}

/// A path without the detours that can be seen without a look at the disk.
fn plain_path(path: &Path) -> PathBuf {
    path.components().filter(|component| !matches!(component, Component::CurDir)).collect()
}

const PROTOCOLS: [(&str, AckMode); 3] = [("A", AckMode::A), ("B", AckMode::B), ("C", AckMode::C)];

const READ_BALANCING: [(&str, ReadBalancing); 10] = [
    ("prefer-local", ReadBalancing::PreferLocal),
    ("prefer-remote", ReadBalancing::PreferRemote),
    ("round-robin", ReadBalancing::RoundRobin),
    ("least-pending", ReadBalancing::LeastPending),
    ("32K-striping", ReadBalancing::Striping { shift: 15 }),
    ("64K-striping", ReadBalancing::Striping { shift: 16 }),
    ("128K-striping", ReadBalancing::Striping { shift: 17 }),
    ("256K-striping", ReadBalancing::Striping { shift: 18 }),
    ("512K-striping", ReadBalancing::Striping { shift: 19 }),
    ("1M-striping", ReadBalancing::Striping { shift: 20 }),
];

/// The largest LUN of the form that every initiator knows (SAM-5 4.7.7.1, peripheral device addressing).
const LUN_MAX: u64 = 255;
const SIZE_STEP: u64 = 4096;
const SIZE_MAX: u64 = 1 << 50;
const SOCKET_BUFFER_MAX: u32 = 128 << 20;
