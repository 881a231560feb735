//! The picture for people: laid out as `drbdadm status`, with what is wrong and what to do below each resource.

use std::fmt::Write;

use replication::{ConnectionState, DiskState, ReplicationState, Role};

use super::{Connection, PeerDevice, Resource, explain};

/// The text of `evenkeel status`.
#[must_use]
pub fn render(resources: &[Resource]) -> String {
    draw(resources, &|device| format!("{:.2}", device.percent_in_sync))
}

/// One frame of `evenkeel status --watch`: a resync has a bar.
#[must_use]
pub fn watch(resources: &[Resource]) -> String {
    draw(resources, &|device| {
        let left = device.estimated_seconds_to_finish.map(|seconds| format!(" {} left", duration(seconds)));
        let size = kib(device.out_of_sync);
        format!(
            "{:.2} {} {size} to copy{}",
            device.percent_in_sync,
            bar(device.percent_in_sync),
            left.unwrap_or_default()
        )
    })
}

/// The text of `evenkeel why`: every state that is not normal, with what shows it and what mends it.
#[must_use]
pub fn causes(resources: &[Resource]) -> String {
    let mut text = String::new();
    for resource in resources {
        let findings = explain::findings(resource);
        if findings.is_empty() {
            let _ = writeln!(text, "{}: nothing is wrong", resource.name);
        }
        for finding in findings {
            let _ = writeln!(text, "{}: {}", resource.name, finding.what);
            if let Some(cause) = &finding.cause {
                let _ = writeln!(text, "  cause: {cause}");
            }
            let _ = writeln!(text, "  means: {}", finding.meaning);
            for fact in &finding.evidence {
                let _ = writeln!(text, "  seen:  {fact}");
            }
            let _ = writeln!(text, "  do:    {}", finding.remedy);
        }
    }
    if text.is_empty() { "no resource\n".to_owned() } else { text }
}

fn draw(resources: &[Resource], progress: &dyn Fn(&PeerDevice) -> String) -> String {
    if resources.is_empty() {
        return "no resource\n".to_owned();
    }
    let mut text = String::new();
    for (place, resource) in resources.iter().enumerate() {
        if place > 0 {
            text.push('\n');
        }
        own(&mut text, resource);
        for peer in &resource.connections {
            connection(&mut text, peer, resource.devices.len() > 1, progress);
        }
        for session in &resource.sessions {
            let _ =
                writeln!(text, "  session {} {} {}", session.initiator, session.transport, session.address);
        }
        for finding in explain::findings(resource) {
            let _ = writeln!(text, "\n  ! {}", finding.what);
            if let Some(cause) = &finding.cause {
                let _ = writeln!(text, "    cause: {cause}");
            }
            let _ = writeln!(text, "    means: {}", finding.meaning);
            let _ = writeln!(text, "    do:    {}", finding.remedy);
        }
    }
    text
}

fn own(text: &mut String, resource: &Resource) {
    let suspended = if resource.suspended { " suspended:yes" } else { "" };
    let _ = writeln!(text, "{} role:{}{suspended}", resource.name, resource.role);
    for device in &resource.devices {
        let volume = volume(device.volume, resource.devices.len() > 1);
        let client = if device.disk_state == DiskState::Diskless { client(device.client) } else { "" };
        let quorum = if device.quorum { "" } else { " quorum:no" };
        let _ =
            writeln!(text, "  {volume}disk:{}{client}{quorum} size:{}", device.disk_state, kib(device.size));
    }
}

fn connection(
    text: &mut String,
    peer: &Connection,
    numbered: bool,
    progress: &dyn Fn(&PeerDevice) -> String,
) {
    let _ = write!(text, "  {}", peer.name);
    if peer.connection_state != ConnectionState::Connected {
        let _ = write!(text, " connection:{}", peer.connection_state);
    }
    if peer.peer_role != Role::Unknown {
        let _ = write!(text, " role:{}", peer.peer_role);
    }
    let congested = if peer.congested { " congested:yes" } else { "" };
    let _ = writeln!(text, " protocol:{:?}{congested}", peer.protocol);
    for device in &peer.peer_devices {
        let known = device.peer_disk_state != DiskState::DUnknown
            || device.replication_state != ReplicationState::Off;
        if !known && device.out_of_sync == 0 {
            continue;
        }
        let _ = write!(text, "    {}", volume(device.volume, numbered));
        if !matches!(device.replication_state, ReplicationState::Off | ReplicationState::Established) {
            let _ = write!(text, "replication:{} ", device.replication_state);
        }
        let client =
            if device.peer_disk_state == DiskState::Diskless { client(device.peer_client) } else { "" };
        let _ = write!(text, "peer-disk:{}{client}", device.peer_disk_state);
        if device.is_syncing() {
            let _ = write!(text, " done:{}", progress(device));
        } else if device.out_of_sync > 0 {
            let _ = write!(text, " out-of-sync:{}", kib(device.out_of_sync));
        }
        text.push('\n');
    }
}

fn volume(number: u16, numbered: bool) -> String {
    if numbered { format!("volume:{number} ") } else { String::new() }
}

const fn client(client: bool) -> &'static str {
    if client { " client:yes" } else { " client:no" }
}

/// KiB in the largest unit that leaves at least one, with one place behind the point.
pub(super) fn kib(kib: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let steps = (kib.max(1).ilog2() / 10).min(4);
    let tenths = (u128::from(kib) * 10) >> (10 * steps);
    match tenths % 10 {
        0 => format!("{}{}", tenths / 10, UNITS[steps as usize]),
        tenth => format!("{}.{tenth}{}", tenths / 10, UNITS[steps as usize]),
    }
}

fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

/// Twenty places, in ASCII, so that every terminal and every log shows it.
fn bar(percent: f64) -> String {
    let filled =
        (0..BAR_LEN).filter(|place| f64::from(*place + 1) * 100.0 / f64::from(BAR_LEN) <= percent).count();
    let head = if filled < BAR_LEN as usize { ">" } else { "" };
    format!("[{:.<width$}]", "=".repeat(filled) + head, width = BAR_LEN as usize)
}

const BAR_LEN: u32 = 20;
