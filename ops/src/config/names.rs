//! Names and addresses: nodes and resources, iSCSI names (RFC 7143 4.2.7), NVMe names (Base 2.0 4.5), TCP addresses.

use std::{net::SocketAddr, ops::Range};

use nom::{
    Parser,
    bytes::complete::{tag, take_while_m_n, take_while1},
    character::complete::{char, satisfy},
    combinator::{all_consuming, opt, recognize},
    sequence::preceded,
};

use super::{model::Address, values::Fault};

/// A name of a cluster, node or resource: it appears in file names, metrics and IQNs.
pub(super) fn plain(name: &str) -> Result<(), Fault> {
    let first = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    if first && rest && name.len() <= NAME_MAX {
        return Ok(());
    }
    let help =
        format!("write letters, digits, `.`, `-` and `_`, a letter or digit first, at most {NAME_MAX}");
    Err(Fault::new(format!("\"{}\" is not a name", name.escape_debug()), help))
}

/// An iSCSI name of type iqn: `iqn.YYYY-MM.`, a domain name in reverse, and anything after a colon.
pub(super) fn iqn(name: &str) -> Result<(), Fault> {
    let help =
        "write iqn.YYYY-MM.DOMAIN:NAME in lower case, e.g. iqn.2026-11.com.example:db, at most 223 bytes";
    dated(name, "iqn.", |c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-:".contains(c))
        .map_err(|what| Fault::new(format!("\"{}\" is not an iSCSI name: {what}", name.escape_debug()), help))
}

/// An NVMe qualified name: `nqn.YYYY-MM.`, a domain name in reverse and a colon, or the form with a UUID.
pub(super) fn nqn(name: &str) -> Result<(), Fault> {
    let help = "write nqn.YYYY-MM.DOMAIN:NAME, e.g. nqn.2026-11.com.example:db, at most 223 bytes";
    if let Some(id) = name.strip_prefix(NQN_UUID)
        && uuid::Uuid::try_parse(id).is_ok()
    {
        return Ok(());
    }
    dated(name, "nqn.", |c| c.is_ascii_graphic())
        .map_err(|what| Fault::new(format!("\"{}\" is not an NVMe name: {what}", name.escape_debug()), help))
}

/// The name of an initiator (iqn, eui, naa) or of a host (nqn).
pub(super) fn initiator(name: &str) -> Result<(), Fault> {
    let hex = |text: &str, lengths: &[usize]| {
        lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    match name.get(..4) {
        Some("iqn.") => iqn(name),
        Some("nqn.") => nqn(name),
        Some("eui.") if hex(&name[4..], &[16]) => Ok(()),
        Some("naa.") if hex(&name[4..], &[16, 32]) => Ok(()),
        Some("eui.") => Err(Fault::new("this is not an EUI-64 name", "write eui. and 16 hexadecimal digits")),
        Some("naa.") => {
            Err(Fault::new("this is not an NAA name", "write naa. and 16 or 32 hexadecimal digits"))
        }
        _ => Err(Fault::new(
            format!("\"{}\" is not the name of an initiator or host", name.escape_debug()),
            "write what /etc/iscsi/initiatorname.iscsi (iqn.) or /etc/nvme/hostnqn (nqn.) of the host says",
        )),
    }
}

/// The part of a resource's default names after the colon: iSCSI names have no upper case and no underscore.
pub(super) fn as_qualified(resource: &str) -> String {
    resource.to_ascii_lowercase().replace('_', "-")
}

/// A TCP address with its port.
pub(super) fn address(text: &str) -> Result<Address, Fault> {
    const FORMS: &str = "write \"192.0.2.1:3260\", \"[2001:db8::1]:3260\" or \"host:3260\"";
    if let Ok(address) = text.parse::<SocketAddr>() {
        return if address.port() == 0 { Err(port_fault(text)) } else { Ok(Address::Ip(address)) };
    }
    if text.parse::<std::net::IpAddr>().is_ok() {
        let shown = if text.contains(':') { format!("[{text}]") } else { text.to_owned() };
        return Err(Fault::new("the port is missing", format!("write \"{shown}:PORT\"")));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(Fault::new(format!("\"{}\" is not an address with a port", text.escape_debug()), FORMS));
    };
    if host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok() {
        return Err(port_fault(text));
    }
    let numeric = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if numeric || !is_host(host) {
        return Err(Fault::new(format!("\"{}\" is not an address", text.escape_debug()), FORMS));
    }
    match port.parse::<u16>() {
        Ok(port) if port != 0 => Ok(Address::Name { host: host.to_owned(), port }),
        _ => Err(port_fault(text)),
    }
}

/// Whether a key looks as if its value were a secret.
pub(super) fn sounds_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| key.contains(word)) && !key.contains("file")
}

/// Where secrets may stand in a text that need not be TOML: from the `=` of a suspicious key to the end of its line.
pub(super) fn secrets(source: &str) -> Vec<Range<usize>> {
    let suspicious = |(at, _): &(usize, &str)| {
        let before = source[..*at].trim_end_matches([' ', '\t', '"', '\'']);
        let key =
            before.rfind(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').map_or(0, |edge| edge + 1);
        before.get(key..).is_some_and(sounds_secret)
    };
    let to_line_end = |(at, _)| at + 1..source[at..].find('\n').map_or(source.len(), |len| at + len);
    source.match_indices('=').filter(suspicious).map(to_line_end).collect()
}

/// The candidate that a misspelled name is nearest to, if it is near at all.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name: String = name.chars().take(NAME_MAX).collect::<String>().to_ascii_lowercase().replace('_', "-");
    candidates
        .map(|candidate| (distance(&name, candidate), candidate))
        .filter(|&(distance, candidate)| distance * 3 <= candidate.len().max(3))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters to insert, remove, replace or swap with their neighbour to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for i in 0..=from.len() {
        for j in 0..=to.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
                let swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
                let swap = if swapped { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                replaced.min(swap).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
        }
    }
    rows[from.len()][to.len()]
}

/// `PREFIXYYYY-MM.DOMAIN[:ANYTHING]`, at most 223 bytes.
fn dated(name: &str, prefix: &str, allowed: impl Fn(char) -> bool) -> Result<(), String> {
    if name.len() > QUALIFIED_MAX {
        return Err(format!("it has {} bytes", name.len()));
    }
    if let Some(wrong) = name.chars().find(|&c| !allowed(c)) {
        return Err(format!("`{}` may not be in it", wrong.escape_debug()));
    }
    let digits = |count| take_while_m_n(count, count, |c: char| c.is_ascii_digit());
    let domain = recognize((
        satisfy(|c| c.is_ascii_alphanumeric()),
        take_while1(|c: char| c.is_ascii_alphanumeric() || ".-".contains(c)),
    ));
    let suffix = opt(preceded(char(':'), take_while1(|_| true)));
    let mut form = all_consuming((tag(prefix), digits(4), char('-'), digits(2), char('.'), domain, suffix));
    let parsed: Result<_, nom::Err<nom::error::Error<&str>>> = form.parse(name);
    let (_, (_, _, _, month, ..)) = parsed.map_err(|_| "it has another form".to_owned())?;
    if (1..=12).contains(&month.parse().unwrap_or(0_u8)) {
        Ok(())
    } else {
        Err(format!("{month} is not a month"))
    }
}

/// A host name: labels of letters, digits and hyphens (RFC 1123 2.1).
fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    host.len() <= 253 && host.split('.').all(label)
}

fn port_fault(text: &str) -> Fault {
    Fault::new(format!("\"{}\" has no usable port", text.escape_debug()), "write a port from 1 to 65535")
}

const NAME_MAX: usize = 64;
const SECRET_WORDS: [&str; 5] = ["secret", "password", "passwd", "passphrase", "psk"];
const QUALIFIED_MAX: usize = 223;
const NQN_UUID: &str = "nqn.2014-08.org.nvmexpress:uuid:";

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7143 4.2.7.5: what is a name of type iqn, and what is not.
    #[test]
    fn iscsi_names() {
        for name in
            ["iqn.2026-11.io.evenkeel:db", "iqn.1993-08.org.debian:01:host1", "iqn.2001-04.com.example"]
        {
            assert!(iqn(name).is_ok(), "{name}");
        }
        for name in [
            "",
            "iqn",
            "iqn.2026-13.io.x:a",
            "iqn.2026-11.io.x:A",
            "iqn.26-11.io.x",
            "iqn.2026-11.io x:a",
            "nqn.2026-11.io.x:a",
            "iqn.2026-11.",
            "iqn.2026-11.io.x:",
        ] {
            assert!(iqn(name).is_err(), "{name}");
        }
        assert!(iqn(&format!("iqn.2026-11.io.x:{}", "a".repeat(206))).is_ok());
        assert!(iqn(&format!("iqn.2026-11.io.x:{}", "a".repeat(207))).is_err());
        for name in ["eui.02004567A425678D", "naa.52004567BA64678D", "naa.62004567BA64678D0123456789ABCDEF"] {
            assert!(initiator(name).is_ok(), "{name}");
        }
        for name in ["eui.0200", "naa.5200", "eui.zz004567A425678D", "host1", "ü"] {
            assert!(initiator(name).is_err(), "{name}");
        }
    }

    /// NVMe Base 2.0, 4.5: both forms.
    #[test]
    fn nvme_names() {
        for name in [
            "nqn.2026-11.io.evenkeel:db",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        ] {
            assert!(nqn(name).is_ok(), "{name}");
        }
        for name in ["nqn.2026-00.io.x:a", "nqn.io.x:a", "iqn.2026-11.io.x:a", "nqn.2026-11.io.x: a"] {
            assert!(nqn(name).is_err(), "{name}");
        }
    }

    #[test]
    fn addresses() {
        for (text, shown) in [
            ("127.0.0.1:3260", "127.0.0.1:3260"),
            ("[::1]:3260", "[::1]:3260"),
            ("alpha:7789", "alpha:7789"),
            ("alpha.example.com:7789", "alpha.example.com:7789"),
        ] {
            assert_eq!(address(text).ok().map(|address| address.to_string()).as_deref(), Some(shown));
        }
        for (text, right) in [
            ("127.0.0.1", "\"127.0.0.1:PORT\""),
            ("::1", "\"[::1]:PORT\""),
            ("127.0.0.1:0", "1 to 65535"),
            ("alpha:66000", "1 to 65535"),
            ("alpha", "host:3260"),
            ("256.0.0.1:1", "192.0.2.1:3260"),
            (":3260", "192.0.2.1:3260"),
            ("a b:3260", "192.0.2.1:3260"),
        ] {
            let fault = address(text).expect_err(text);
            assert!(fault.help.contains(right), "{text}: {}", fault.help);
        }
    }

    #[test]
    fn near_words() {
        let keys = ["ping-timeout", "ping-int", "timeout", "size", "number"];
        for (typed, meant) in [
            ("ping_timeout", Some("ping-timeout")),
            ("pingtimeout", Some("ping-timeout")),
            ("tiemout", Some("timeout")),
            ("sizee", Some("size")),
            ("nubmer", Some("number")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, keys.into_iter()), meant, "{typed}");
        }
    }
}
