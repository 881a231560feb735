//! Every key of the configuration file: what it takes, its default and what it means.
//!
//! The parser refuses what is not here, its advice comes from here, and `docs/configuration.md` is written from here.

/// A table of the file.
#[derive(Debug)]
pub(super) struct Section {
    /// As its header is written.
    pub(super) header: &'static str,
    /// What it is.
    pub(super) about: &'static str,
    /// Its keys.
    pub(super) keys: &'static [Key],
}

/// A key of a table.
#[derive(Debug)]
pub(super) struct Key {
    /// Its name. Those of `net`, `disk` and `options` are DRBD's.
    pub(super) name: &'static str,
    /// What kind of value it takes.
    pub(super) takes: &'static str,
    /// What holds where it is absent.
    pub(super) default: Absent,
    /// What it means.
    pub(super) about: &'static str,
}

/// What holds where a key is absent.
#[derive(Debug)]
pub(super) enum Absent {
    /// It has to be there.
    Required,
    /// This value, as it is written in the file.
    Value(&'static str),
    /// Something that depends on the rest of the file, in words.
    Depends(&'static str),
}

use Absent::{Depends, Required, Value};

const fn key(name: &'static str, takes: &'static str, default: Absent, about: &'static str) -> Key {
    Key { name, takes, default, about }
}

/// Keys that are understood and have no effect yet: they are accepted with a warning. Whoever makes one work removes
/// it here.
pub(super) const WITHOUT_EFFECT: [&str; 4] = ["max-buffers", "on-io-error", "rcvbuf-size", "sndbuf-size"];

/// Every table, in the order of the reference.
pub(super) const SECTIONS: [&Section; 14] = [
    &ROOT,
    &CLUSTER,
    &TLS,
    &NODE,
    &ADVERTISE,
    &RESOURCE,
    &VOLUME,
    &CONNECTION,
    &NET,
    &DISK,
    &OPTIONS,
    &EXPORT,
    &CHAP,
    &CHAP_MUTUAL,
];

pub(super) const ROOT: Section = Section {
    header: "",
    about: "The file as a whole. It is the same on every node.",
    keys: &[
        key("cluster", "table", Required, "What all nodes share: `[cluster]`."),
        key("node", "tables", Required, "The machines, 1 to 32 of them: `[[node]]`."),
        key("resource", "tables", Required, "What they keep: `[[resource]]`."),
    ],
};

pub(super) const CLUSTER: Section = Section {
    header: "[cluster]",
    about: "What all nodes share.",
    keys: &[
        key("name", "name", Required, "The cluster's name. Nodes of another cluster are refused."),
        key(
            "secret-file",
            "path",
            Depends("required with two nodes or more"),
            "The secret that nodes prove to each other: at least 16 bytes that nobody can guess, in a file of mode \
             0600 or stricter, the same on every node (`openssl rand -hex 32`). A line break at its end does not count.",
        ),
        key(
            "id",
            "UUID",
            Depends("derived from `name` and the secret"),
            "What the serial numbers, NAA and NGUID of all volumes derive from. Set it before you change the secret or \
             the name, to what `evenkeel status --json` shows as `cluster-id`, so that initiators see the same devices.",
        ),
        key(
            "tls",
            "table",
            Depends("no TLS"),
            "Certificates for the connections between nodes: `[cluster.tls]`. **Refused in this version.**",
        ),
    ],
};

pub(super) const TLS: Section = Section {
    header: "[cluster.tls]",
    about: "Certificates for the connections between nodes, in PEM. `{node}` in a path stands for the node's name. \
            **Refused in this version.**",
    keys: &[
        key("ca", "path", Required, "The authority that signed every node's certificate."),
        key("certificate", "path", Required, "The node's certificate."),
        key("key", "path", Required, "The node's private key, in a file of mode 0600 or stricter."),
    ],
};

pub(super) const NODE: Section = Section {
    header: "[[node]]",
    about: "A machine.",
    keys: &[
        key("name", "name", Required, "The node's name; `serve` finds the node by host name."),
        key("id", "number 0 to 31", Required, "The node's number. It stays with the node for good."),
        key(
            "replication",
            "address",
            Depends("required with two nodes or more"),
            "Where the node listens for its peers, and where they reach it. A host name is looked up for each call anew.",
        ),
        key(
            "iscsi",
            "addresses",
            Value("[]"),
            "Where the node listens for iSCSI initiators, usually port 3260.",
        ),
        key(
            "nvme-tcp",
            "addresses",
            Value("[]"),
            "Where the node listens for NVMe/TCP hosts, usually port 4420. **No effect in this version yet.**",
        ),
        key(
            "metrics",
            "address",
            Depends("no metrics"),
            "Where `/metrics` and `/healthz` are, usually port 9942.",
        ),
        key(
            "advertise",
            "table",
            Depends("the addresses above"),
            "What discovery tells, behind NAT or in containers: `advertise = { iscsi = [\"203.0.113.5:3260\"] }`.",
        ),
        key(
            "admin",
            "path",
            Depends("`/run/evenkeel/NAME.sock`"),
            "The Unix socket by which `evenkeel status` and its like reach the node.",
        ),
    ],
};

pub(super) const ADVERTISE: Section = Section {
    header: "node.advertise",
    about: "What discovery tells instead of the addresses that the node listens on.",
    keys: &[
        key("iscsi", "addresses", Depends("`iscsi` of the node"), "What `SendTargets` tells."),
        key("nvme-tcp", "addresses", Depends("`nvme-tcp` of the node"), "What the discovery log page tells."),
    ],
};

pub(super) const RESOURCE: Section = Section {
    header: "[[resource]]",
    about: "Volumes that share a role, connections and one write order. Every node takes part: with disks where a \
            volume names it, diskless otherwise.",
    keys: &[
        key("name", "name", Required, "The resource's name."),
        key(
            "protocol",
            "`\"A\"`, `\"B\"` or `\"C\"`",
            Value("\"C\""),
            "When a write is acknowledged. A: the local disk has it, and it is on its way to the peers. B: the peers have \
             it in memory. C: the peers' disks have it.",
        ),
        key("net", "table", Depends("its defaults"), "Timeouts and buffers: `[resource.net]`."),
        key("disk", "table", Depends("its defaults"), "How local disks are treated: `[resource.disk]`."),
        key(
            "options",
            "table",
            Depends("its defaults"),
            "When the resource may serve: `[resource.options]`.",
        ),
        key("volume", "tables", Required, "Its volumes, at least one: `[[resource.volume]]`."),
        key("connection", "tables", Value("[]"), "Connections that differ: `[[resource.connection]]`."),
        key("export", "table", Depends("its defaults"), "How initiators see it: `[resource.export]`."),
    ],
};

pub(super) const VOLUME: Section = Section {
    header: "[[resource.volume]]",
    about: "A block device of the resource.",
    keys: &[
        key("number", "number 0 to 255", Required, "The volume's number, which is its LUN."),
        key("size", "size", Required, "How large it is: a multiple of 4096 bytes, up to 1PiB."),
        key(
            "block-size",
            "`512` or `4096`",
            Value("512"),
            "The logical block that initiators see, in bytes.",
        ),
        key(
            "physical-block-size",
            "`512` or `4096`",
            Depends("`block-size`"),
            "The block that the disks handle best, in bytes, as initiators are told: at least `block-size`.",
        ),
        key("read-only", "`true` or `false`", Value("false"), "Whether initiators may only read it."),
        key(
            "disks",
            "table of node = path",
            Required,
            "The backing file or device of each diskful node. A file that does not exist is created.",
        ),
        key(
            "metadata",
            "table of node = path",
            Value("{}"),
            "Where a node keeps the metadata apart from the data; behind the data otherwise.",
        ),
    ],
};

pub(super) const CONNECTION: Section = Section {
    header: "[[resource.connection]]",
    about: "What differs between two nodes from what the resource says.",
    keys: &[
        key("nodes", "two node names", Required, "Between whom."),
        key(
            "protocol",
            "`\"A\"`, `\"B\"` or `\"C\"`",
            Depends("`protocol` of the resource"),
            "As in `[[resource]]`.",
        ),
        key(
            "net",
            "table",
            Depends("`net` of the resource"),
            "As in `[[resource]]`; what it leaves out holds on.",
        ),
    ],
};

pub(super) const NET: Section = Section {
    header: "[resource.net]",
    about: "Timeouts and buffers of a connection. Names are DRBD's; times and sizes have units.",
    keys: &[
        key("timeout", "time", Value("\"6s\""), "How long a peer may take to answer a request."),
        key(
            "ko-count",
            "number 0 to 200",
            Value("7"),
            "How many times `timeout` a peer may be late with a write or a read before its connection is dropped; 0: for ever.",
        ),
        key(
            "ping-int",
            "time",
            Value("\"1s\""),
            "How long a connection may be silent before the peer is asked for life.",
        ),
        key("ping-timeout", "time", Value("\"500ms\""), "How long the peer may take to answer that."),
        key("connect-int", "time", Value("\"1s\""), "The longest pause between two attempts to connect."),
        key(
            "max-buffers",
            "number 32 to 131072",
            Value("8192"),
            "How much of a peer's writes may wait here, in buffers of 4096 bytes.",
        ),
        key(
            "sndbuf-size",
            "size",
            Value("0"),
            "The socket's send buffer, up to 128MiB; 0: the system decides.",
        ),
        key(
            "rcvbuf-size",
            "size",
            Value("0"),
            "The socket's receive buffer, up to 128MiB; 0: the system decides.",
        ),
        key(
            "after-sb-0pri",
            "policy",
            Value("\"disconnect\""),
            "Whose data goes after a split brain where neither node is Primary. `disconnect`: nobody's, an operator decides. \
             `discard-younger-primary`, `discard-older-primary`: that of the side that was promoted later, or earlier. \
             `discard-zero-changes`: that of the side on which nothing was written. `discard-least-changes`: that of the \
             side on which less was written. Where that does not tell, it is `disconnect`; of two sides with equally few \
             changes, the node with the higher id gives up.",
        ),
        key(
            "after-sb-1pri",
            "policy",
            Value("\"disconnect\""),
            "The same where one node is Primary. `discard-secondary`: the Secondary's data goes. `consensus`: it goes if \
             `after-sb-0pri` says so too, else `disconnect`. `call-pri-lost-after-sb`: `after-sb-0pri` decides, and a Primary \
             that it names is demoted first; its initiators' commands fail.",
        ),
        key(
            "after-sb-2pri",
            "policy",
            Value("\"disconnect\""),
            "The same where both nodes are Primary: `disconnect` or `call-pri-lost-after-sb`.",
        ),
    ],
};

pub(super) const DISK: Section = Section {
    header: "[resource.disk]",
    about: "How local disks are treated. Names are DRBD's.",
    keys: &[
        key(
            "on-io-error",
            "`\"detach\"` or `\"pass_on\"`",
            Value("\"detach\""),
            "What a medium error does: `detach` gives the disk up and lets the peers serve, `pass_on` fails the command.",
        ),
        key(
            "disk-timeout",
            "time",
            Value("\"30s\""),
            "How long a disk may take for an operation before it is given up, where a good peer is connected; without one it is waited for. 0s: for ever.",
        ),
        key(
            "al-extents",
            "number 67 to 65534",
            Value("1237"),
            "How many extents of 4 MiB the activity log holds: what may have to be copied after a crash.",
        ),
        key(
            "read-balancing",
            "`\"prefer-local\"`, `\"prefer-remote\"`, `\"round-robin\"`, `\"least-pending\"` or `\"32K-striping\"`, \
             `\"64K-striping\"` and so on to `\"1M-striping\"`",
            Value("\"prefer-local\""),
            "Which good replica serves a read, on nodes with a disk and without. `prefer-local`: the local one, where it is \
             good. `prefer-remote`: a peer's, where one is good. `round-robin`: each in turn. `least-pending`: the one that \
             is done first, by its pending reads and how long its reads took lately; a stream of reads stays with one \
             until another takes half as long. `32K-striping` and so on: each its stripes of that length. A read returns \
             what was acknowledged before, whichever replica serves it.",
        ),
    ],
};

pub(super) const OPTIONS: Section = Section {
    header: "[resource.options]",
    about: "When the resource may serve. Names are DRBD's.",
    keys: &[
        key(
            "quorum",
            "`\"off\"` or `\"majority\"`",
            Depends("`\"majority\"` with three nodes or more, `\"off\"` otherwise"),
            "How many nodes must see each other: more than half of the diskful ones, where diskless ones break ties.",
        ),
        key(
            "auto-promote",
            "`true` or `false`",
            Value("true"),
            "Whether the first session that touches the medium makes its node Primary.",
        ),
    ],
};

pub(super) const EXPORT: Section = Section {
    header: "[resource.export]",
    about: "How initiators see the resource. Every node exports it by the same names.",
    keys: &[
        key("iqn", "iSCSI name", Depends("`iqn.2026-11.io.evenkeel:NAME`"), "The iSCSI target's name."),
        key("nqn", "NVMe name", Depends("`nqn.2026-11.io.evenkeel:NAME`"), "The NVMe subsystem's name."),
        key("chap", "table", Depends("no CHAP"), "What an initiator has to prove: `{ user, secret-file }`."),
        key(
            "chap-mutual",
            "table",
            Depends("no proof"),
            "What the target proves to an initiator that asks: `{ user, secret-file }`.",
        ),
        key(
            "allow",
            "list of names",
            Depends("anyone who reaches the address"),
            "The initiators (`iqn.`, `eui.`, `naa.`) and hosts (`nqn.`) that may log in; `[]`: nobody.",
        ),
    ],
};

const CHAP_KEYS: &[Key] = &[
    key("user", "text", Required, "The user's name, up to 255 bytes."),
    key(
        "secret-file",
        "path",
        Required,
        "The secret: 12 to 255 bytes in a file of mode 0600 or stricter. A line break at its end does not count.",
    ),
];

pub(super) const CHAP: Section =
    Section { header: "resource.export.chap", about: "What an initiator has to prove.", keys: CHAP_KEYS };

pub(super) const CHAP_MUTUAL: Section = Section {
    header: "resource.export.chap-mutual",
    about: "What the target proves to an initiator that asks; its secret differs from that of `chap`.",
    keys: CHAP_KEYS,
};
