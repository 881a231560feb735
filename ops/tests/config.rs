//! The configuration file from outside: what the contract's example means, and what `check` says to each mistake.

use std::{path::Path, time::Duration};

use block::{BlockSize, VolumeNumber};
use ops::config::{Allow, Config, OnIoError, Problem, Problems, Severity};
use replication::{AckMode, NodeId, Quorum};

const CONTRACT: &str = include_str!("contract.toml");

fn parse(text: &str) -> Result<Config, Problems> {
    Config::parse(Path::new("/etc/evenkeel.toml"), text.as_bytes()).map(|checked| checked.config)
}

fn problems(text: &str) -> Vec<Problem> {
    match Config::parse(Path::new("/etc/evenkeel.toml"), text.as_bytes()) {
        Ok(checked) => checked.warnings.list().to_vec(),
        Err(problems) => problems.list().to_vec(),
    }
}

/// The contract: every key of its example means what the example says.
#[test]
fn the_example_of_the_contract() {
    let config = parse(CONTRACT).unwrap();
    assert_eq!(config.cluster.name, "demo");
    assert_eq!(config.cluster.secret_file.as_deref(), Some(Path::new("/etc/cluster.secret")));
    let [alpha, bravo, charlie] = ["alpha", "bravo", "charlie"].map(|name| config.node(name).unwrap());
    assert_eq!([alpha.id, bravo.id, charlie.id], [NodeId(0), NodeId(1), NodeId(7)]);
    assert_eq!(alpha.iscsi_advertised()[0].to_string(), "203.0.113.5:3260");
    assert_eq!(bravo.iscsi_advertised()[1].to_string(), "[::1]:3261");
    assert_eq!(charlie.replication.as_ref().unwrap().to_string(), "charlie.example.com:7789");
    assert_eq!(charlie.admin, Path::new("/run/evenkeel/charlie.sock"));
    let db = config.resource("db").unwrap();
    assert_eq!(db.connection(charlie.id, alpha.id).protocol, AckMode::A);
    assert_eq!(db.connection(charlie.id, bravo.id).protocol, AckMode::C);
    assert_eq!(db.connection.net.ping_timeout, Duration::from_millis(500));
    assert_eq!((db.disk.al_extents, db.disk.on_io_error), (1237, OnIoError::Detach));
    assert_eq!((db.options.quorum, db.options.auto_promote), (Quorum::Majority, true));
    let volume = db.volume(VolumeNumber(0)).unwrap();
    assert_eq!((volume.size, volume.block_size), (1 << 30, BlockSize::B512));
    assert_eq!(volume.disks[&bravo.id], Path::new("/etc/bravo-db0.img"));
    assert_eq!(volume.disks.get(&charlie.id), None);
    assert_eq!(volume.metadata[&alpha.id], Path::new("/dev/fast/db0-md"));
    assert_eq!(db.export.chap.as_ref().unwrap().secret_file, Path::new("/etc/db.chap"));
    assert_eq!(db.export.chap_mutual.as_ref().unwrap().user, "target");
    assert!(matches!(&db.export.allow, Allow::Listed(names) if names.len() == 2));
    assert!(db.export.allow.permits("iqn.1993-08.org.debian:01:HOST1"));
    assert!(!db.export.allow.permits("iqn.1993-08.org.debian:01:host2"));
}

/// Without a word about it the physical block is the logical one; a larger one may be named, a smaller one not.
#[test]
fn physical_blocks() {
    use BlockSize::{B512, B4096};
    for (text, logical, physical) in [
        ("block-size = 512", B512, B512),
        ("block-size = 4096", B4096, B4096),
        ("physical-block-size = 4096", B512, B4096),
        ("block-size = 512\nphysical-block-size = 512", B512, B512),
        ("block-size = 4096\nphysical-block-size = 4096", B4096, B4096),
    ] {
        let config = parse(&CONTRACT.replace("block-size = 512", text)).unwrap();
        let volume = config.resource("db").unwrap().volume(VolumeNumber(0)).unwrap();
        assert_eq!((volume.block_size, volume.physical_block_size), (logical, physical), "{text}");
    }
}

/// A key set to its documented default changes nothing; so the documented defaults are true.
#[test]
fn documented_defaults_are_the_defaults() {
    let mut spelled = CONTRACT.to_owned();
    let mut tables = 0;
    for (header, inline) in [
        ("[resource.net]", "net = { ping-timeout = \"500ms\" }"),
        ("[resource.disk]", "disk = { al-extents = 1237 }"),
    ] {
        let reference = ops::config::reference();
        let section =
            reference.split("\n## ").find(|section| section.starts_with(&format!("`{header}`"))).unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let pairs: Vec<String> = rows
            .map(|row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                format!("{} = {}", cells[0].trim_matches('`'), cells[2].trim_matches('`'))
            })
            .collect();
        assert!(pairs.len() >= 3, "{header}: {pairs:?}");
        let key = inline.split(' ').next().unwrap();
        assert!(spelled.contains(inline));
        spelled = spelled.replace(inline, &format!("{key} = {{ {} }}", pairs.join(", ")));
        tables += 1;
    }
    assert_eq!(tables, 2);
    let plain = CONTRACT
        .replace("net = { ping-timeout = \"500ms\" }\n", "")
        .replace("disk = { al-extents = 1237 }\n", "")
        .replace("options = { quorum = \"majority\", auto-promote = true }\n", "")
        .replace("block-size = 512\n", "")
        .replace("protocol = \"C\"\n", "")
        .replace("iqn = \"iqn.2026-11.io.evenkeel:db\"\n", "")
        .replace("nqn = \"nqn.2026-11.io.evenkeel:db\"\n", "");
    assert_eq!(parse(&spelled).unwrap(), parse(&plain).unwrap());
    assert_eq!(parse(CONTRACT).unwrap(), parse(&plain).unwrap());
}

/// What a mistake is, where it is noted (at `^`), and what is said about it.
struct Mistake {
    /// A piece of the contract's example.
    instead_of: &'static str,
    /// What stands there by mistake; the problem is noted at the character after `^`.
    written: &'static str,
    message: &'static str,
    help: &'static str,
}

const fn mistake(
    instead_of: &'static str,
    written: &'static str,
    message: &'static str,
    help: &'static str,
) -> Mistake {
    Mistake { instead_of, written, message, help }
}

const ERRORS: &[Mistake] = &[
    // Form.
    mistake("id = 0\n", "id = ^\n", "not TOML", "toml.io"),
    mistake("name = \"alpha\"", "name = \"alpha^", "not TOML", "toml.io"),
    mistake("id = 0\n", "id = 0\n^id = 0\n", "duplicate key", ""),
    mistake("[cluster]", "^[[cluster]]", "`cluster` takes a table, not an array", "[cluster]"),
    // Keys.
    mistake("block-size = 512", "^blocksize = 512", "no key `blocksize`", "did you mean `block-size`?"),
    mistake(
        "iscsi = [\"127.0.0.1:3260\"]",
        "^isci = []",
        "no key `isci` in [[node]]",
        "did you mean `iscsi`?",
    ),
    mistake(
        "protocol = \"C\"",
        "^size = \"1GiB\"",
        "no key `size` in [[resource]]",
        "a key of [[resource.volume]]",
    ),
    mistake("protocol = \"C\"", "^colour = 1", "no key `colour`", "the keys here are name, protocol"),
    mistake(
        "[[node]]\nname = \"alpha\"",
        "[[^nodes]]\nname = \"alpha\"",
        "no key `nodes` at the top",
        "`node`",
    ),
    mistake(
        "protocol = \"C\"",
        "^ping_timeout = 5",
        "no key `ping_timeout` in [[resource]]",
        "`ping-timeout` is a key of [resource.net]",
    ),
    mistake(
        "{ ping-timeout = \"500ms\" }",
        "{ ^pingtimeout = \"500ms\" }",
        "`pingtimeout`",
        "`ping-timeout`",
    ),
    mistake("{ ping-timeout = \"500ms\" }", "{ ^rr-conflict = \"x\" }", "not supported", "remove the line"),
    mistake(
        "{ ping-timeout = \"500ms\" }",
        "{ after-sb-0pri = ^\"x\" }",
        "not one of",
        "discard-zero-changes",
    ),
    mistake(
        "{ ping-timeout = \"500ms\" }",
        "{ after-sb-1pri = ^\"violently-as0p\" }",
        "under a Primary",
        "consensus",
    ),
    mistake(
        "{ ping-timeout = \"500ms\" }",
        "{ after-sb-0pri = ^\"discard-remote\" }",
        "no side",
        "disconnect",
    ),
    mistake("{ ping-timeout = \"500ms\" }", "{ ^shared-secret = \"x\" }", "secret is never", "0600"),
    mistake("[cluster]\n", "[cluster]\n^secret = \"hunter2\"\n", "secret is never", "0600"),
    mistake("user = \"db\", ", "^password = \"hunter2\", user = \"db\", ", "secret is never", "secret-file"),
    // What has to be there.
    mistake("name = \"demo\"\n", "", "`name` is missing from [cluster]", "add it (name)"),
    mistake(
        "secret-file = \"cluster.secret\"\n",
        "",
        "`secret-file` is missing from [cluster]",
        "openssl rand",
    ),
    mistake("[[node]]\nname = \"alpha\"", "^[[node]]", "`name` is missing from [[node]]", "add it (name)"),
    mistake(
        "[[node]]\nname = \"alpha\"\nid = 0",
        "^[[node]]\nname = \"alpha\"",
        "`id` is missing",
        "0 to 31",
    ),
    mistake("number = 0\n", "", "`number` is missing from [[resource.volume]]", "LUN"),
    mistake("size = \"1GiB\"\n", "", "`size` is missing from [[resource.volume]]", "multiple of 4096"),
    mistake(
        ", secret-file = \"db.chap\"",
        "",
        "`secret-file` is missing from resource.export.chap",
        "12 to 255",
    ),
    // Types.
    mistake("name = \"demo\"", "name = ^5", "a string is wanted here, not an integer", "in quotes"),
    mistake("id = 0\n", "id = ^\"0\"\n", "a whole number is wanted here, not a string", "0 to 31"),
    mistake(
        "iscsi = [\"127.0.0.1:3260\"]",
        "iscsi = ^\"127.0.0.1:3260\"",
        "takes a list",
        "iscsi = [\"...\"]",
    ),
    mistake("iscsi = [\"127.0.0.1:3260\"]", "iscsi = [^3260]", "takes a string, not an integer", "in quotes"),
    mistake(
        "disks = { alpha = \"alpha-db0.img\", bravo = \"bravo-db0.img\" }",
        "disks = ^\"a.img\"",
        "`disks` takes",
        "disks = { NODE",
    ),
    mistake(
        "net = { ping-timeout = \"500ms\" }",
        "net = ^5",
        "`net` takes a table, not an integer",
        "[resource.net]",
    ),
    mistake("auto-promote = true", "auto-promote = ^\"yes\"", "DRBD's spelling", "write true"),
    mistake("auto-promote = true", "auto-promote = ^1", "truth value", "true or false"),
    // Names.
    mistake("name = \"demo\"", "name = ^\"my cluster\"", "\"my cluster\" is not a name", "letters, digits"),
    mistake("name = \"demo\"", "name = ^\"\"", "empty", ""),
    mistake("name = \"bravo\"", "name = ^\"alpha\"", "a node `alpha` already", "of its own"),
    mistake("id = 1\n", "id = ^0\n", "id 0 is that of `alpha`", "write id = 1"),
    mistake("id = 1\n", "id = ^32\n", "32 is out of range", "0 to 31"),
    mistake("id = 1\n", "id = ^-1\n", "-1 is out of range", "0 to 31"),
    mistake(
        "bravo = \"bravo-db0.img\"",
        "^brawo = \"bravo-db0.img\"",
        "no node `brawo`",
        "did you mean `bravo`?",
    ),
    mistake(
        "bravo = \"bravo-db0.img\"",
        "^delta = \"bravo-db0.img\"",
        "no node `delta`",
        "alpha, bravo, charlie",
    ),
    mistake(
        "[\"alpha\", \"charlie\"]",
        "[\"alpha\", ^\"charly\"]",
        "no node `charly`",
        "did you mean `charlie`?",
    ),
    // Addresses.
    mistake("\"127.0.0.1:7789\"", "^\"127.0.0.1\"", "the port is missing", "127.0.0.1:PORT"),
    mistake("\"127.0.0.1:7789\"", "^\"0.0.0.0:7789\"", "wildcard", "by which they reach it"),
    mistake(
        "\"127.0.0.2:7789\"",
        "^\"127.0.0.1:7789\"",
        "`alpha` has this replication address",
        "of its own",
    ),
    mistake("[\"127.0.0.1:3260\"]", "[^\"127.0.0.1:99999\"]", "no usable port", "1 to 65535"),
    mistake(
        "metrics = \"127.0.0.1:9942\"",
        "metrics = ^\"127.0.0.1:7789\"",
        "listens on 127.0.0.1:7789 already",
        "port",
    ),
    mistake("[\"127.0.0.1:3260\"]", "[\"0.0.0.0:3260\", ^\"127.0.0.1:3260\"]", "listens on", "another port"),
    mistake("replication = \"127.0.0.2:7789\"\n", "", "`replication` is missing from [[node]]", "address"),
    mistake("[\"203.0.113.5:3260\"]", "[^\"[::]:3260\"]", "wildcard", "by which they reach it"),
    // Sizes and times.
    mistake("\"1GiB\"", "^\"1G\"", "not a size", "write `1GiB`"),
    mistake("\"1GiB\"", "^\"1.5GiB\"", "not a size", "whole numbers"),
    mistake("\"1GiB\"", "^\"0\"", "at least 4096", "10GiB"),
    mistake("\"1GiB\"", "^1000000", "not a multiple of 4096", "write \"980KiB\""),
    mistake("\"1GiB\"", "^\"2PiB\"", "at most 1PiB", "smaller"),
    mistake("block-size = 512", "block-size = ^1024", "512 or 4096 bytes, not 1024", "512 or 4096"),
    mistake("block-size = 512", "physical-block-size = ^8192", "512 or 4096 bytes, not 8192", "512 or 4096"),
    mistake(
        "block-size = 512",
        "block-size = 4096\nphysical-block-size = ^512",
        "of 512 bytes holds no logical block",
        "write 4096, or leave it out",
    ),
    mistake("\"500ms\"", "^5", "needs its unit", "\"5s\" or \"5ms\""),
    mistake("\"500ms\"", "^\"5 m\"", "not a time", "`5min`"),
    mistake("\"500ms\"", "^\"1ms\"", "1ms is out of range", "\"100ms\" to \"1min\""),
    mistake("al-extents = 1237", "al-extents = ^7", "7 is out of range", "67 to 65534"),
    mistake(
        "al-extents = 1237",
        "on-io-error = ^\"panic\"",
        "not one of the choices",
        "\"detach\" or \"pass_on\"",
    ),
    mistake(
        "al-extents = 1237",
        "read-balancing = ^\"16K-striping\"",
        "not one of the choices",
        "\"least-pending\" or \"32K-striping\" or \"64K-striping\"",
    ),
    mistake("ping-timeout = \"500ms\"", "sndbuf-size = ^\"1GiB\"", "too many", "\"128MiB\""),
    mistake("protocol = \"C\"", "protocol = ^\"D\"", "not one of the choices", "\"A\" or \"B\" or \"C\""),
    mistake(
        "quorum = \"majority\"",
        "quorum = ^\"all\"",
        "not one of the choices",
        "\"off\" or \"majority\"",
    ),
    // What does not go together.
    mistake(
        "metadata = { alpha = \"/dev/fast/db0-md\" }",
        "metadata = { ^charlie = \"md\" }",
        "`charlie` has no disk",
        "`disks`",
    ),
    mistake(
        "metadata = { alpha = \"/dev/fast/db0-md\" }",
        "metadata = { alpha = ^\"./alpha-db0.img\" }",
        "uses this file",
        "of its own",
    ),
    mistake(
        "{ alpha = \"alpha-db0.img\", bravo = \"bravo-db0.img\" }\nmetadata = { alpha = \"/dev/fast/db0-md\" }",
        "{}",
        "no node has a disk",
        "NODE",
    ),
    mistake("[\"alpha\", \"charlie\"]", "^[\"alpha\", \"alpha\"]", "between two nodes", "ANOTHER"),
    mistake("[\"alpha\", \"charlie\"]", "^[\"alpha\"]", "between two nodes", "ANOTHER"),
    mistake(
        "secret-file = \"db-mutual.chap\"",
        "secret-file = \"db.chap\"",
        "the same secret",
        "another file",
    ),
    mistake("chap = { user = \"db\", secret-file = \"db.chap\" }\n", "", "proves itself only", "set `chap`"),
    // Names that initiators see.
    mistake("\"iqn.2026-11.io.evenkeel:db\"", "^\"iqn.evenkeel:db\"", "not an iSCSI name", "iqn.YYYY-MM"),
    mistake(
        "\"iqn.2026-11.io.evenkeel:db\"",
        "^\"iqn.2026-11.io.evenkeel:DB\"",
        "`D` may not be",
        "lower case",
    ),
    mistake(
        "\"nqn.2026-11.io.evenkeel:db\"",
        "^\"nqn.2026-13.io.evenkeel:db\"",
        "13 is not a month",
        "nqn.YYYY-MM",
    ),
    mistake(
        "\"iqn.1993-08.org.debian:01:host1\"",
        "^\"host1\"",
        "not the name of an initiator",
        "initiatorname.iscsi",
    ),
    mistake(
        "secret-file = \"cluster.secret\"\n",
        "secret-file = \"s\"\nid = ^\"7\"\n",
        "not a UUID",
        "uuidgen",
    ),
    mistake(
        "secret-file = \"cluster.secret\"\n",
        "secret-file = \"s\"\ntls = ^{ ca = \"a\", certificate = \"b\", key = \"c\" }\n",
        "not encrypt",
        "trust",
    ),
];

const WARNINGS: &[Mistake] = &[
    mistake(
        "{ ping-timeout = \"500ms\" }",
        "{ ^tcp-cork = true }",
        "DRBD's `tcp-cork` has no effect",
        "can go",
    ),
    mistake("{ al-extents = 1237 }", "{ ^md-flushes = true }", "DRBD's `md-flushes` has no effect", "can go"),
    mistake(
        "nvme-tcp = [\"127.0.0.1:4420\"]",
        "nvme-tcp = [^\"127.0.0.1:4420\"]",
        "does not serve NVMe/TCP",
        "iSCSI",
    ),
    mistake("\"500ms\" }", "\"8s\" }", "silent for longer than `timeout`", "below timeout"),
    mistake(
        "ping-timeout = \"500ms\"",
        "^rcvbuf-size = \"1MiB\"",
        "`rcvbuf-size` has no effect in this version",
        "may stay",
    ),
];

/// The contract: a problem has its line, its column and what to write instead; and one mistake is one problem.
#[test]
fn every_mistake_is_found_where_it_is() {
    let mut wrong = Vec::new();
    for (mistakes, severity) in [(ERRORS, Severity::Error), (WARNINGS, Severity::Warning)] {
        for mistake in mistakes {
            let marked = CONTRACT.replacen(mistake.instead_of, mistake.written, 1);
            assert!(CONTRACT.contains(mistake.instead_of), "`{}` is not in the example", mistake.instead_of);
            let found = problems(&marked.replacen('^', "", 1));
            let meant = found.iter().find(|problem| {
                problem.severity == severity
                    && problem.message.contains(mistake.message)
                    && problem.help.contains(mistake.help)
                    && place(&marked).is_none_or(|place| place == (problem.line, problem.column))
            });
            // Where a node lost its name, whoever names it is wrong too.
            let of_its_own = |problem: &&Problem| !problem.message.contains("no node `");
            let others =
                found.iter().filter(|problem| Some(*problem) != meant && problem.severity == Severity::Error);
            if meant.is_none_or(|meant| meant.help.is_empty()) || others.filter(of_its_own).count() > 0 {
                wrong.push(format!("`{}`: {found:#?}", mistake.written));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The line and column of the mark, counted from 1.
fn place(marked: &str) -> Option<(usize, usize)> {
    let at = marked.find('^')?;
    let line_start = marked[..at].rfind('\n').map_or(0, |newline| newline + 1);
    Some((marked[..at].matches('\n').count() + 1, at - line_start + 1))
}

/// The contract: all problems at once.
#[test]
fn all_problems_come_at_once() {
    let text = CONTRACT
        .replace("id = 1\n", "id = 99\n")
        .replace("\"1GiB\"", "\"1G\"")
        .replace("block-size", "blocksize")
        .replace("\"500ms\"", "5");
    let errors: Vec<usize> = problems(&text)
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .map(|problem| problem.line)
        .collect();
    let sorted = errors.is_sorted();
    assert!(sorted && errors.len() >= 4, "{errors:?}");
}

/// A problem looks like a compiler's, and its JSON has the fields that programs read.
#[test]
fn problems_are_shown_to_people_and_programs() {
    let text = CONTRACT
        .replace("size = \"1GiB\"", "size = \"1G\"")
        .replace("nvme-tcp = [\"127.0.0.1:4420\"]\n", "")
        .replace("disk = { al-extents = 1237 }", "");
    let problems = Config::parse(Path::new("cluster.toml"), text.as_bytes()).unwrap_err();
    let shown = problems.render(false);
    for part in [
        "error: this is not a size",
        "cluster.toml:36:8",
        "size = \"1G\"",
        "^^^^",
        "help: `G` is not a unit here; write `1GiB`",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert!(!shown.contains('\u{1b}'), "no colours: {shown}");
    assert!(problems.render(true).contains('\u{1b}'));
    let json: serde_json::Value = serde_json::from_str(&problems.to_json()).unwrap();
    assert_eq!(json[0]["file"], "cluster.toml");
    assert_eq!(json[0]["severity"], "error");
    assert_eq!((&json[0]["line"], &json[0]["column"]), (&36.into(), &8.into()));
    assert!(json[0]["message"].is_string() && json[0]["help"].is_string());
}

/// Security: a secret that was put into the file by mistake does not reach a terminal or a log.
#[test]
fn a_secret_in_the_file_is_not_shown() {
    for (instead_of, written) in [
        ("user = \"db\", ", "password = \"hunter2\", usr = \"db\", "),
        ("secret-file = \"db.chap\"", "secret = \"hunter2\""),
        ("[cluster]\n", "[cluster]\nshared-secret = \"hunter2\"\n"),
        ("[cluster]\n", "[cluster]\nsecret = \"hunter2\n"),
        ("chap = { user = \"db\", secret-file = \"db.chap\" }", "chap = \"db:hunter2\""),
        (
            "chap = { user = \"db\", secret-file = \"db.chap\" }",
            "chap = { user = \"db\", secret = \"hunter2\" ",
        ),
    ] {
        let text = CONTRACT.replacen(instead_of, written, 1);
        let problems = Config::parse(Path::new("a.toml"), text.as_bytes()).unwrap_err();
        for shown in [problems.render(false), problems.render(true), problems.to_json()] {
            assert!(!shown.contains("hunter2"), "{written}: {shown}");
        }
    }
}

/// P13 for files: whatever a file holds, `check` answers.
#[test]
fn no_file_makes_check_panic() {
    for end in 0..=CONTRACT.len() {
        problems(&CONTRACT[..end]);
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 33).unwrap()
    };
    let mut refused = 0;
    for round in 0..3000 {
        let mut bytes = CONTRACT.as_bytes().to_vec();
        for _ in 0..=random() % 4 {
            let at = random() % bytes.len();
            match random() % 4 {
                0 => bytes[at] = u8::try_from(random() % 256).unwrap(),
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"\"[]{}=\n#.'\\0-e"[random() % 14]),
                _ => {
                    let from = random() % bytes.len();
                    let piece = bytes[from..(from + random() % 40).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        if let Err(problems) = Config::parse(Path::new("a.toml"), &bytes) {
            refused += 1;
            assert!(problems.has_errors(), "round {round}");
            let shown = problems.render(false);
            assert!(shown.contains("error"), "round {round}: {shown}");
        }
    }
    assert!(refused > 1000, "mutations have to hit something: {refused}");
}

/// Deep nesting costs no stack, and a huge file no memory.
#[test]
fn size_and_depth_are_bounded() {
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(problems(&deep).iter().any(|problem| problem.severity == Severity::Error));
    let huge = "# padding\n".repeat(200_000);
    assert!(problems(&huge)[0].message.contains("bytes"));
    let many = "a\n".repeat(10_000);
    assert!(problems(&many).len() <= 100);
}
