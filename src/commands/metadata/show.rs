//! `evenkeel metadata show`: what the metadata of a stopped node's disk says, for people and as JSON.

use std::fmt::Write;

use ops::config::Config;
use replication::{Activity, Generation, Inspection, NodeId};
use serde::Serialize;

/// What is shown.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Shown {
    pub(super) resource: String,
    pub(super) volume: u16,
    pub(super) node: String,
    pub(super) disk: String,
    /// `internal`, or where it is.
    pub(super) metadata: String,
    pub(super) state: State,
    /// Only where `state` is `written`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) superblock: Option<Superblock>,
}

/// What the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// Nothing was ever written.
    Fresh,
    /// Data of which nothing is known.
    Adopted,
    /// There is a superblock.
    Written,
}

/// What the superblock and what belongs to it say.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Superblock {
    /// Why it is not that of the volume in the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    foreign: Option<String>,
    cluster: String,
    resource: String,
    volume: u16,
    node_id: u8,
    size: u64,
    block_size: u32,
    sequence: u64,
    generation: String,
    history: Vec<String>,
    left_behind: Vec<LeftBehind>,
    flags: Vec<&'static str>,
    activity_log: ActivityLog,
    peers: Vec<Peer>,
}

#[derive(Debug, Serialize)]
struct LeftBehind {
    node: String,
    generation: String,
}

#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
enum ActivityLog {
    Absent,
    Hot { extents: u64, extent_size: u64 },
    Damaged,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Peer {
    node: String,
    /// In blocks of 4 KiB.
    out_of_sync_blocks: u64,
}

impl Superblock {
    pub(super) fn new(found: Inspection, config: &Config) -> Self {
        let name = |id: NodeId| {
            let node = config.nodes.iter().find(|node| node.id == id);
            node.map_or_else(|| format!("node {}", id.0), |node| node.name.clone())
        };
        Self {
            foreign: found.foreign.map(|error| error.to_string()),
            cluster: hex(found.cluster),
            resource: hex(found.resource),
            volume: found.volume.0,
            node_id: found.node.0,
            size: found.size,
            block_size: found.block_size,
            sequence: found.sequence,
            generation: generation(found.current),
            history: found.history.into_iter().map(generation).collect(),
            left_behind: found
                .bases
                .into_iter()
                .map(|(node, base)| LeftBehind { node: name(node), generation: generation(base) })
                .collect(),
            flags: found.flags,
            activity_log: match found.activity {
                Activity::Absent => ActivityLog::Absent,
                Activity::Hot { extents, extent_len } => {
                    ActivityLog::Hot { extents, extent_size: extent_len }
                }
                Activity::Damaged => ActivityLog::Damaged,
            },
            peers: found
                .out_of_sync
                .into_iter()
                .map(|(node, blocks)| Peer { node: name(node), out_of_sync_blocks: blocks })
                .collect(),
        }
    }

    fn render(&self, out: &mut String) -> std::fmt::Result {
        if let Some(foreign) = &self.foreign {
            writeln!(out, "  NOT this volume's: {foreign}")?;
        }
        writeln!(out, "  cluster {}, resource {}, node id {}", self.cluster, self.resource, self.node_id)?;
        writeln!(out, "  {} bytes in blocks of {}", self.size, self.block_size)?;
        writeln!(out, "  superblock written {} times", self.sequence)?;
        writeln!(out, "  generation {}", self.generation)?;
        for ended in &self.history {
            writeln!(out, "    before     {ended}")?;
        }
        for LeftBehind { node, generation } in &self.left_behind {
            writeln!(out, "    {node} was left behind at {generation}")?;
        }
        let flags = if self.flags.is_empty() { "none".to_owned() } else { self.flags.join(" ") };
        writeln!(out, "  flags: {flags}")?;
        match &self.activity_log {
            ActivityLog::Absent => writeln!(out, "  activity log: none")?,
            ActivityLog::Hot { extents, extent_size } => {
                writeln!(
                    out,
                    "  activity log: {extents} hot extents of {extent_size} bytes; after a crash all in them counts as different"
                )?;
            }
            ActivityLog::Damaged => writeln!(out, "  activity log: damaged; after a crash all is copied")?,
        }
        for Peer { node, out_of_sync_blocks } in &self.peers {
            writeln!(out, "  {out_of_sync_blocks} blocks of 4 KiB may differ from {node}")?;
        }
        Ok(())
    }
}

impl Shown {
    pub(super) fn text(&self) -> String {
        let Self { resource, volume, node, disk, metadata, state, superblock } = self;
        let mut out = format!("{resource}/{volume} on {node}: {disk}, metadata {metadata}\n");
        out.push_str(match state {
            State::Fresh => "  fresh: nothing was ever written\n",
            State::Adopted => "  adopted: data of which nothing is known, no superblock yet\n",
            State::Written => "",
        });
        if let Some(superblock) = superblock {
            superblock.render(&mut out).expect("a string takes everything");
        }
        out
    }
}

fn generation(generation: Generation) -> String {
    hex(generation.0)
}

fn hex(number: u64) -> String {
    format!("{number:016X}")
}
