//! `docs/configuration.md`, written from the catalogue of keys.

use std::fmt::Write;

use super::{
    foreign::{FOREIGN, Standing},
    keys::{Absent, SECTIONS, Section, WITHOUT_EFFECT},
};

/// The reference of the configuration file, in Markdown.
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(HEAD);
    for section in SECTIONS {
        table(&mut text, section);
    }
    foreign(&mut text);
    text
}

fn table(text: &mut String, section: &Section) {
    let title =
        if section.header.is_empty() { "The file".to_owned() } else { format!("`{}`", section.header) };
    let _ = write!(
        text,
        "\n## {title}\n\n{}\n\n| key | takes | default | meaning |\n|---|---|---|---|\n",
        section.about
    );
    for key in section.keys {
        let default = match key.default {
            Absent::Required => "required".to_owned(),
            Absent::Value(value) => format!("`{value}`"),
            Absent::Depends(words) => words.to_owned(),
        };
        let yet = if WITHOUT_EFFECT.contains(&key.name) { " **No effect in this version yet.**" } else { "" };
        let _ = writeln!(text, "| `{}` | {} | {default} | {}{yet} |", key.name, key.takes, key.about);
    }
}

fn foreign(text: &mut String) {
    text.push_str(FOREIGN_HEAD);
    for option in &FOREIGN {
        let fate = match option.standing {
            Standing::Meaningless(why) => format!("accepted with a warning: {why}"),
            Standing::NotYet => "refused: not supported by this version".to_owned(),
            Standing::Elsewhere(place) => format!("refused: write `{place}`"),
        };
        let _ = writeln!(text, "| `{}` | {fate} |", option.name);
    }
}

const HEAD: &str = "# The configuration file

<!-- Written from ops/src/config/keys.rs. After a change there: EVENKEEL_WRITE_DOCS=1 cargo test -p ops --test reference -->

One TOML file describes the whole cluster, and it is the same on every node. `evenkeel check --config FILE` finds every
problem of it at once, each with its line, its column and what to write instead; unknown keys are problems.

```toml
[cluster]
name = \"demo\"
secret-file = \"cluster.secret\"

[[node]]
name = \"alpha\"
id = 0
replication = \"192.0.2.1:7789\"
iscsi = [\"192.0.2.1:3260\"]
metrics = \"127.0.0.1:9942\"

[[node]]
name = \"bravo\"
id = 1
replication = \"192.0.2.2:7789\"
iscsi = [\"192.0.2.2:3260\"]
metrics = \"127.0.0.1:9942\"

[[resource]]
name = \"db\"
net = { ping-timeout = \"300ms\" }

[[resource.volume]]
number = 0
size = \"10GiB\"
disks = { alpha = \"/dev/vg0/db\", bravo = \"/dev/vg0/db\" }

[resource.export]
allow = [\"iqn.1993-08.org.debian:01:host1\"]
```

A **size** is a whole number of bytes or a string with a unit: `512`, `\"64KiB\"`, `\"10GiB\"` (KiB, MiB, GiB, TiB, PiB). A **time** is a
string with a unit: `\"500ms\"`, `\"10s\"`, `\"5min\"`, `\"1h\"`. Both are exact: fractions are refused. A **path** is taken from the
directory of the file unless it is absolute. An **address** is `\"192.0.2.1:3260\"`, `\"[2001:db8::1]:3260\"` or `\"host:3260\"`. A **name** has
letters, digits, `.`, `-` and `_`, begins with a letter or digit, and has at most 64 characters. Secrets are never in the
file: it names files of mode 0600 or stricter.
";

const FOREIGN_HEAD: &str = "
## Options of DRBD

`net`, `disk` and `options` have DRBD's names, but times and sizes carry units (DRBD's `ping-timeout 5` is `\"500ms\"`), and yes and no
are `true` and `false`. Of the options that are not in the tables above, those without a meaning here are accepted, so that an old
configuration can be carried over, and those whose meaning this version does not honour are refused, so that nobody counts on them.

| DRBD's option | here |
|---|---|
";
