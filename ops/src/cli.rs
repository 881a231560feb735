//! The command line. One definition serves the parser, `--help`, the completions and the man pages.
//!
//! Exit codes: 0 success, 1 the node refused or failed, 2 bad usage or a bad configuration file.

use std::{fmt, path::PathBuf, time::Duration};

use block::VolumeNumber;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::quantity;

/// A replicated network storage target in userspace.
///
/// Evenkeel exports volumes over iSCSI and keeps every block on several machines. Start with `evenkeel demo`.
#[derive(Clone, Debug, Parser)]
#[command(name = "evenkeel", version, propagate_version = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the binary can do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run three nodes on loopback, and say how to attach to them.
    ///
    /// Writes a configuration and sparse disks into a directory, starts a process for each node and runs until Ctrl-C.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(Demo),
    /// Run a node in the foreground.
    ///
    /// Logs go to standard error. SIGTERM stops it cleanly.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Serve),
    /// Everything that needs no node of its own.
    #[command(flatten)]
    Verb(Verb),
}

/// What is done beside a node, or asked of a running one.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Find every problem of a configuration file.
    ///
    /// Each problem comes with its line, its column and what to write instead. Exits 2 when there is an error.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Show resources: roles, disks, peers and sessions.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Status),
    /// Say why something is not as it should be, and which command mends it.
    ///
    /// For a split brain it shows what each side wrote. Prints the findings as JSON with --json.
    #[command(after_help = WHY_EXAMPLES)]
    Why(Why),
    /// Follow what changes, one line a change.
    #[command(after_help = EVENTS_EXAMPLES)]
    Events(Events),
    /// Let this node serve a resource to initiators.
    #[command(after_help = PRIMARY_EXAMPLES)]
    Primary(Promote),
    /// Stop serving a resource on this node, so that another may.
    Secondary(Demote),
    /// Want a connection to the peers of a resource.
    #[command(after_help = CONNECT_EXAMPLES)]
    Connect(Connect),
    /// Take the connection to the peers of a resource down, and leave it down.
    Disconnect(Disconnect),
    /// Hold the resyncs of a resource or volume up.
    ///
    /// It lasts until resume-sync or the end of the node, whatever becomes of the connection.
    #[command(after_help = PAUSE_EXAMPLES)]
    PauseSync(PauseSync),
    /// Let the resyncs that pause-sync holds up go on.
    ResumeSync(PauseSync),
    /// Go on without this node's disk of a volume; peers serve it.
    ///
    /// Refused for the last good replica of a volume in use.
    #[command(after_help = DETACH_EXAMPLES)]
    Detach(Detach),
    /// Open this node's disk of a volume again, and copy what it missed.
    ///
    /// Refused on the Primary, and while the old disk has not answered everything that it was asked.
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(Attach),
    /// Give up what a volume holds on this node, and copy everything from a peer.
    ///
    /// Refused where no connected peer is UpToDate, and on the Primary.
    #[command(after_help = INVALIDATE_EXAMPLES)]
    Invalidate(Invalidate),
    /// Give up what a volume holds on a peer, and copy everything from this node.
    #[command(after_help = INVALIDATE_REMOTE_EXAMPLES)]
    InvalidateRemote(InvalidateRemote),
    /// Begin a new generation of a volume's data.
    ///
    /// On the Primary; with --clear-bitmap between nodes whose replicas were just created, and whose data you know to be equal.
    #[command(after_help = NEW_GENERATION_EXAMPLES)]
    NewGeneration(NewGeneration),
    /// Change an option of a running resource.
    ///
    /// Returns once what the new value promises is true. It lasts until the node ends; then its configuration file holds.
    #[command(after_help = SET_EXAMPLES)]
    Set(Set),
    /// Wait until a resource is connected or up to date.
    #[command(after_help = WAIT_EXAMPLES)]
    Wait(Wait),
    /// Work on the metadata of a node that is stopped.
    #[command(subcommand)]
    Metadata(MetadataVerb),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(Completions),
    /// Write the man pages into a directory.
    Man(Man),
}

/// How a running node is reached, and how its answer is printed.
#[derive(Clone, Debug, Args)]
pub struct Reach {
    /// The node's admin socket.
    #[arg(long, value_name = "PATH", env = "EVENKEEL_ADMIN", help_heading = "Node")]
    pub admin: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel demo`
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Keep configuration and disks here; a temporary directory otherwise.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Try it out: write, kill a node, fail over, resync, compare the replicas, and exit 0 or 1.
    #[arg(long)]
    pub check: bool,
}

/// `evenkeel serve`
#[derive(Clone, Debug, Args)]
pub struct Serve {
    #[command(flatten)]
    source: ServeSource,
    /// Which node of the file this is; found by host name otherwise.
    #[arg(long, value_name = "NAME", conflicts_with = "disk")]
    pub node: Option<String>,
    /// How large FILE is to be, e.g. 10GiB; needed where it does not exist.
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, conflicts_with = "config")]
    pub size: Option<u64>,
    /// Stop when the process that started this one ends, as the demo's nodes do.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// What a node serves.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
struct ServeSource {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One file or device on loopback, without any configuration.
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
}

/// What a node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// What this file says.
    Config(&'a std::path::Path),
    /// One file or device.
    Disk(&'a std::path::Path),
}

impl Serve {
    /// What the node serves.
    ///
    /// # Panics
    /// Never: clap asks for exactly one of the two.
    #[must_use]
    pub fn source(&self) -> Source<'_> {
        match (&self.source.config, &self.source.disk) {
            (Some(file), _) => Source::Config(file),
            (None, Some(file)) => Source::Disk(file),
            (None, None) => unreachable!("clap demands one of --config and --disk"),
        }
    }
}

/// `evenkeel check`
#[derive(Clone, Debug, Args)]
pub struct Check {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print the problems as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel status`
#[derive(Clone, Debug, Args)]
pub struct Status {
    /// Which resource; all of them otherwise.
    pub resource: Option<String>,
    /// Draw it again whenever it changes, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel why`
#[derive(Clone, Debug, Args)]
pub struct Why {
    /// Which resource; all of them otherwise.
    pub resource: Option<String>,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel events`
#[derive(Clone, Debug, Args)]
pub struct Events {
    /// Print what exists now and stop.
    #[arg(long)]
    pub now: bool,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel primary`
#[derive(Clone, Debug, Args)]
pub struct Promote {
    /// The resource.
    pub resource: String,
    /// Even if the data here may be old, or is Inconsistent. What only other nodes have may be lost.
    #[arg(long)]
    pub force: bool,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel secondary`
#[derive(Clone, Debug, Args)]
pub struct Demote {
    /// The resource.
    pub resource: String,
    /// Even if sessions use it: their commands fail from now on.
    #[arg(long)]
    pub force: bool,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel connect`
#[derive(Clone, Debug, Args)]
pub struct Connect {
    /// The resource.
    pub resource: String,
    /// To this node; to every peer otherwise.
    #[arg(long, value_name = "NODE")]
    pub peer: Option<String>,
    /// Where the data diverged, give up what was written on this node.
    #[arg(long)]
    pub discard_my_data: bool,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel disconnect`
#[derive(Clone, Debug, Args)]
pub struct Disconnect {
    /// The resource.
    pub resource: String,
    /// From this node; from every peer otherwise.
    #[arg(long, value_name = "NODE")]
    pub peer: Option<String>,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel pause-sync` and `resume-sync`
#[derive(Clone, Debug, Args)]
pub struct PauseSync {
    /// The resource, or one volume of it, e.g. db or db/0.
    #[arg(value_name = "RESOURCE[/VOLUME]", value_parser = resource_or_volume)]
    pub target: ResourceOrVolume,
    /// With this node; with every peer otherwise.
    #[arg(long, value_name = "NODE")]
    pub peer: Option<String>,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel detach`
#[derive(Clone, Debug, Args)]
pub struct Detach {
    /// The volume, e.g. db/0.
    #[arg(value_name = "RESOURCE/VOLUME", value_parser = volume_name)]
    pub volume: VolumeName,
    /// Even if it is in use and no other good replica is connected: commands wait or fail from now on.
    #[arg(long)]
    pub force: bool,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel attach`
#[derive(Clone, Debug, Args)]
pub struct Attach {
    /// The volume, e.g. db/0.
    #[arg(value_name = "RESOURCE/VOLUME", value_parser = volume_name)]
    pub volume: VolumeName,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel invalidate`
#[derive(Clone, Debug, Args)]
pub struct Invalidate {
    /// The volume, e.g. db/0.
    #[arg(value_name = "RESOURCE/VOLUME", value_parser = volume_name)]
    pub volume: VolumeName,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel invalidate-remote`
#[derive(Clone, Debug, Args)]
pub struct InvalidateRemote {
    /// The volume, e.g. db/0.
    #[arg(value_name = "RESOURCE/VOLUME", value_parser = volume_name)]
    pub volume: VolumeName,
    /// The node whose replica is replaced.
    #[arg(long, value_name = "NODE")]
    pub peer: String,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// `evenkeel new-generation`
#[derive(Clone, Debug, Args)]
pub struct NewGeneration {
    /// The volume, e.g. db/0.
    #[arg(value_name = "RESOURCE/VOLUME", value_parser = volume_name)]
    pub volume: VolumeName,
    /// Declare replicas that were just created to be equal: nothing is copied.
    #[arg(long)]
    pub clear_bitmap: bool,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// A resource, or one volume of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceOrVolume {
    /// The resource.
    pub resource: String,
    /// The volume; all of them where absent.
    pub number: Option<VolumeNumber>,
}

/// `evenkeel set`
#[derive(Clone, Debug, Args)]
pub struct Set {
    /// The resource.
    pub resource: String,
    /// For the connection to this node; for every connection otherwise.
    #[arg(long, value_name = "NODE")]
    pub peer: Option<String>,
    /// What to change: protocol=A, protocol=B or protocol=C.
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = setting)]
    pub settings: Vec<Setting>,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// One option and its new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `protocol=`
    Protocol(replication::AckMode),
}

/// `evenkeel wait`
#[derive(Clone, Debug, Args)]
pub struct Wait {
    /// The resource.
    pub resource: String,
    /// What to wait for.
    pub state: WaitFor,
    /// Give up after this time, e.g. 30s, and exit 1; wait for ever otherwise.
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    pub timeout: Option<Duration>,
    /// How the node is reached.
    #[command(flatten)]
    pub reach: Reach,
}

/// What `evenkeel wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// Every peer is connected.
    Connected,
    /// Every replica is UpToDate, here and on every peer.
    UpToDate,
}

/// `evenkeel metadata`
#[derive(Clone, Debug, Subcommand)]
pub enum MetadataVerb {
    /// Make an existing file or device the disk of a volume: its first bytes become the volume's data.
    ///
    /// The metadata goes behind the data, or where the configuration says; metadata of this volume that is there already
    /// is wiped. What is not this volume's is refused: other bytes, a filesystem that reaches there, other metadata.
    /// The replica is Inconsistent until it has met its peers, or `evenkeel primary --force` says that its data is the
    /// good one.
    #[command(after_help = METADATA_CREATE_EXAMPLES)]
    Create(MetadataCreate),
    /// Show what the metadata says: generations, flags, activity log, and how much may differ from each peer.
    #[command(after_help = METADATA_SHOW_EXAMPLES)]
    Show(MetadataShow),
    /// Take the metadata away: the file or device is no disk of the volume any more, and keeps its data.
    #[command(after_help = METADATA_WIPE_EXAMPLES)]
    Wipe(MetadataWipe),
}

/// `evenkeel metadata create`
#[derive(Clone, Debug, Args)]
pub struct MetadataCreate {
    /// Which disk.
    #[command(flatten)]
    pub place: MetadataPlace,
    /// Overwrite what is not this volume's.
    #[arg(long)]
    pub force: bool,
}

/// `evenkeel metadata show`
#[derive(Clone, Debug, Args)]
pub struct MetadataShow {
    /// Which disk.
    #[command(flatten)]
    pub place: MetadataPlace,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel metadata wipe`
#[derive(Clone, Debug, Args)]
pub struct MetadataWipe {
    /// Which disk.
    #[command(flatten)]
    pub place: MetadataPlace,
    /// Even if it is another volume's, or damaged.
    #[arg(long)]
    pub force: bool,
}

/// The disk that a stopped node has for a volume.
#[derive(Clone, Debug, Args)]
pub struct MetadataPlace {
    /// The volume, e.g. db/0.
    #[arg(value_name = "RESOURCE/VOLUME", value_parser = volume_name)]
    pub volume: VolumeName,
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Which node of the file this is; found by host name otherwise.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// A volume as operators name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeName {
    /// Its resource.
    pub resource: String,
    /// Its number.
    pub number: VolumeNumber,
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.resource, self.number)
    }
}

/// `evenkeel completions`
#[derive(Clone, Debug, Args)]
pub struct Completions {
    /// For which shell.
    pub shell: Shell,
}

/// `evenkeel man`
#[derive(Clone, Debug, Args)]
pub struct Man {
    /// Where the pages go; created where it does not exist.
    pub dir: PathBuf,
}

/// The completion script for a shell.
#[must_use]
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "evenkeel", &mut script);
    script
}

/// The man pages of section 1: of the binary and of each verb, by file name.
///
/// # Errors
/// Never in practice: they are written to memory.
pub fn man_pages() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let (mut pages, mut open) = (Vec::new(), vec![command]);
    while let Some(page) = open.pop() {
        open.extend(page.get_subcommands().cloned());
        let man = clap_mangen::Man::new(page);
        let mut roff = Vec::new();
        man.render(&mut roff)?;
        pages.push((man.get_filename(), roff));
    }
    Ok(pages)
}

fn setting(text: &str) -> Result<Setting, String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err("write KEY=VALUE, e.g. protocol=C".to_owned());
    };
    match (key, replication_mode(value)) {
        ("protocol", Some(mode)) => Ok(Setting::Protocol(mode)),
        ("protocol", None) => Err(format!("protocol is A, B or C, not `{value}`")),
        _ => Err(format!("`{key}` cannot be changed live; what can is protocol")),
    }
}

fn volume_name(text: &str) -> Result<VolumeName, String> {
    text.rsplit_once('/')
        .filter(|(resource, _)| !resource.is_empty())
        .and_then(|(resource, number)| {
            let number = number.parse().ok().map(VolumeNumber)?;
            Some(VolumeName { resource: resource.to_owned(), number })
        })
        .ok_or_else(|| "write RESOURCE/VOLUME, e.g. db/0".to_owned())
}

fn resource_or_volume(text: &str) -> Result<ResourceOrVolume, String> {
    if !text.contains('/') {
        return Ok(ResourceOrVolume { resource: text.to_owned(), number: None });
    }
    volume_name(text).map(|name| ResourceOrVolume { resource: name.resource, number: Some(name.number) })
}

fn replication_mode(text: &str) -> Option<replication::AckMode> {
    match text {
        "A" => Some(replication::AckMode::A),
        "B" => Some(replication::AckMode::B),
        "C" => Some(replication::AckMode::C),
        _ => None,
    }
}

const EXIT_CODES: &str = "Exit codes: 0 success, 1 the node refused or failed, 2 bad usage or configuration.";

const DEMO_EXAMPLES: &str = "Examples:
  evenkeel demo                  three nodes until Ctrl-C
  evenkeel demo --check          prove that mirroring and failover work here
  evenkeel demo --dir /tmp/demo  keep the files, to start again from them";

const SERVE_EXAMPLES: &str = "Examples:
  evenkeel serve --config /etc/evenkeel.toml
  evenkeel serve --config demo.toml --node bravo
  evenkeel serve --disk disk.img --size 10GiB
  EVENKEEL_LOG=debug evenkeel serve --config demo.toml --node bravo";

const CHECK_EXAMPLES: &str = "Examples:
  evenkeel check --config /etc/evenkeel.toml
  evenkeel check --config /etc/evenkeel.toml --json | jq '.[].message'";

const STATUS_EXAMPLES: &str = "Examples:
  evenkeel status
  evenkeel status db --watch
  evenkeel status --json | jq '.[].devices[].\"disk-state\"'";

const WHY_EXAMPLES: &str = "Examples:
  evenkeel why
  evenkeel why db --json | jq '.[].findings[].remedy'";

const EVENTS_EXAMPLES: &str = "Examples:
  evenkeel events          what exists, then every change
  evenkeel events --now    what exists
  evenkeel events --json   one JSON object a line";

const PRIMARY_EXAMPLES: &str = "Examples:
  evenkeel primary db
  evenkeel primary db --force   the other nodes are lost, and this replica is all there is";

const CONNECT_EXAMPLES: &str = "Examples:
  evenkeel connect db
  evenkeel connect db --peer bravo --discard-my-data   after a split brain, on the node whose writes go";

const PAUSE_EXAMPLES: &str = "Examples:
  evenkeel pause-sync db
  evenkeel pause-sync db/0 --peer bravo
  evenkeel resume-sync db";

const INVALIDATE_EXAMPLES: &str = "Examples:
  evenkeel invalidate db/0   the copy here is bad; take that of a peer";

const INVALIDATE_REMOTE_EXAMPLES: &str = "Examples:
  evenkeel invalidate-remote db/0 --peer bravo   the copy on bravo is bad";

const NEW_GENERATION_EXAMPLES: &str = "Examples:
  evenkeel new-generation db/0 --clear-bitmap   both disks were filled with the same image";

const DETACH_EXAMPLES: &str = "Examples:
  evenkeel detach db/0
  evenkeel detach db/0 --force   in use, and there is no other good replica";

const ATTACH_EXAMPLES: &str = "Examples:
  evenkeel attach db/0";

const SET_EXAMPLES: &str = "Examples:
  evenkeel set db protocol=C
  evenkeel set db --peer charlie protocol=A";

const WAIT_EXAMPLES: &str = "Examples:
  evenkeel wait db connected --timeout 30s
  evenkeel wait db up-to-date";

const METADATA_CREATE_EXAMPLES: &str = "Examples:
  evenkeel metadata create db/0 --config /etc/evenkeel.toml
  evenkeel metadata create db/0 --config demo.toml --node bravo";

const METADATA_SHOW_EXAMPLES: &str = "Examples:
  evenkeel metadata show db/0 --config /etc/evenkeel.toml
  evenkeel metadata show db/0 --config demo.toml --node bravo --json | jq .superblock.generation";

const METADATA_WIPE_EXAMPLES: &str = "Examples:
  evenkeel metadata wipe db/0 --config /etc/evenkeel.toml";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  evenkeel completions bash > /etc/bash_completion.d/evenkeel
  evenkeel completions zsh > ~/.zfunc/_evenkeel";

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use replication::AckMode;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
    }

    /// clap's own check of the definition.
    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// Every line of the contract that this version serves is understood.
    #[test]
    fn the_contract_parses() {
        for line in [
            "evenkeel demo",
            "evenkeel demo --dir /tmp/d --check",
            "evenkeel serve --config a.toml",
            "evenkeel serve --config a.toml --node alpha",
            "evenkeel serve --disk a.img",
            "evenkeel serve --disk a.img --size 1GiB",
            "evenkeel check --config a.toml",
            "evenkeel check --config a.toml --json",
            "evenkeel status",
            "evenkeel status db --json",
            "evenkeel status db --watch",
            "evenkeel why",
            "evenkeel why db --json",
            "evenkeel events --json --now",
            "evenkeel primary db --force",
            "evenkeel secondary db --force --json",
            "evenkeel connect db --peer bravo --discard-my-data",
            "evenkeel disconnect db --peer bravo --admin /run/a.sock",
            "evenkeel set db --peer bravo protocol=A",
            "evenkeel pause-sync db",
            "evenkeel pause-sync db/0 --peer bravo",
            "evenkeel resume-sync db/0",
            "evenkeel invalidate db/0",
            "evenkeel invalidate-remote db/0 --peer bravo --json",
            "evenkeel new-generation db/0 --clear-bitmap",
            "evenkeel detach db/0 --force",
            "evenkeel attach db/0",
            "evenkeel wait db connected",
            "evenkeel wait db up-to-date --timeout 30s",
            "evenkeel metadata create db/0 --config a.toml --node alpha --force",
            "evenkeel metadata show db/0 --config a.toml --json",
            "evenkeel metadata wipe db/0 --config a.toml --force",
            "evenkeel completions bash",
            "evenkeel man /tmp/man",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }

    /// Bad usage is exit code 2, and says what would be right.
    #[test]
    fn bad_usage_says_what_is_right() {
        for (line, hint) in [
            ("evenkeel serve", "--config"),
            ("evenkeel serve --config a --disk b", "cannot be used with"),
            ("evenkeel serve --config a --size 1GiB", "cannot be used with"),
            ("evenkeel serve --disk a --size 1G", "`1GiB`"),
            ("evenkeel wait db connected --timeout 30", "`30s`"),
            ("evenkeel wait db sometime", "up-to-date"),
            ("evenkeel set db", "KEY=VALUE"),
            ("evenkeel invalidate db", "db/0"),
            ("evenkeel invalidate-remote db/0", "--peer"),
            ("evenkeel pause-sync db/x", "db/0"),
            ("evenkeel set db protocol=D", "A, B or C"),
            ("evenkeel set db al-extents=3", "what can is protocol"),
            ("evenkeel metadata create db --config a", "RESOURCE/VOLUME"),
            ("evenkeel metadata create db/x --config a", "db/0"),
            ("evenkeel stauts", "status"),
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(hint), "{line}: {error}");
        }
    }

    /// `--help` and `--version` are successes.
    #[test]
    fn help_is_no_error() {
        for verb in Cli::command().get_subcommands() {
            let error =
                parse(&format!("evenkeel {} --help", verb.get_name())).expect_err("help ends the parse");
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::DisplayHelp, 0));
            let about = verb.get_about().expect("every verb says what it does").to_string();
            assert!(error.to_string().contains(&about), "{error}");
        }
        assert_eq!(parse("evenkeel --version").expect_err("so does the version").exit_code(), 0);
    }

    /// One definition: each verb has a page, which names it, its options and the exit codes or examples.
    #[test]
    fn man_pages_cover_every_verb() {
        let pages = man_pages().expect("memory takes them");
        let cli = Cli::command();
        let verbs: usize = cli.get_subcommands().map(|verb| 1 + verb.get_subcommands().count()).sum();
        assert_eq!(pages.len(), verbs + 1);
        for (file, roff) in pages {
            let roff = String::from_utf8(roff).expect("text");
            assert!(roff.contains(".TH evenkeel") && roff.contains(".SH SYNOPSIS"), "{file}");
            if file == "evenkeel-connect.1" {
                assert!(roff.contains("discard\\-my\\-data"), "{roff}");
            }
        }
    }

    #[test]
    fn completions_know_verbs_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(completions(shell)).expect("text");
            for word in ["status", "disconnect", "discard-my-data", "peer"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn settings_carry_their_value() {
        assert_eq!(setting("protocol=B"), Ok(Setting::Protocol(AckMode::B)));
    }
}
