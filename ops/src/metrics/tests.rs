//! A whole scrape: names, labels, values, and the rules of `promtool check metrics`.

use std::{collections::BTreeSet, time::Duration};

use replication::NodeId;

use super::*;
use crate::status::tests::{names, status};

fn scrape() -> String {
    let latencies = Arc::new(Latencies::new("db", [NodeId(1), NodeId(7)]));
    latencies.initiator.record(Operation::Write, Duration::from_micros(100));
    latencies.initiator.record(Operation::Write, Duration::from_mins(1));
    let counters = Counters::default();
    counters.add(Counted::LoginRefused);
    counters.add(Counted::PeerAccepted);
    let process =
        Process { cpu_seconds: 1.5, resident_bytes: 4096, open_fds: 7, max_fds: 1024, start_seconds: 1.8e9 };
    render(&Scrape {
        resources: &[(status(), vec!["iscsi"])],
        names: &names(),
        latencies: &[latencies],
        counters: &counters,
        process: Some(process),
    })
}

/// The contract: series that mean the same as one of LINBIT's exporter keep its name and labels.
#[test]
fn series_of_drbd_reactor() {
    let text = scrape();
    for line in [
        "drbdreactor_up 1",
        "drbd_resource_resources 1",
        "drbd_resource_role{name=\"db\",drbd_resource_role=\"Primary\"} 1",
        "drbd_resource_role{name=\"db\",drbd_resource_role=\"Secondary\"} 0",
        "drbd_resource_suspended{name=\"db\"} 0",
        "drbd_resource_maypromote{name=\"db\"} 0",
        "drbd_device_state{name=\"db\",volume=\"0\",drbd_device_state=\"UpToDate\"} 1",
        "drbd_device_quorum{name=\"db\",volume=\"0\"} 1",
        "drbd_device_open{name=\"db\",volume=\"0\"} 1",
        "drbd_device_unintentionaldiskless{name=\"db\",volume=\"0\"} 0",
        "drbd_device_size_bytes{name=\"db\",volume=\"0\"} 1073741824",
        "drbd_device_read_bytes_total{name=\"db\",volume=\"0\"} 10485760",
        "drbd_device_written_bytes_total{name=\"db\",volume=\"0\"} 20971520",
        "drbd_device_alwrites_total{name=\"db\",volume=\"0\"} 5",
        "drbd_device_bmwrites_total{name=\"db\",volume=\"0\"} 6",
        "drbd_device_upperpending{name=\"db\",volume=\"0\"} 7",
        "drbd_device_lowerpending{name=\"db\",volume=\"0\"} 8",
        "drbd_connection_state{name=\"db\",conn_name=\"bravo\",peer_node_id=\"1\",drbd_connection_state=\"Connected\"} 1",
        "drbd_connection_congested{name=\"db\",conn_name=\"bravo\",peer_node_id=\"1\"} 0",
        "drbd_connection_apinflight_bytes{name=\"db\",conn_name=\"bravo\",peer_node_id=\"1\"} 8192",
        "drbd_connection_rsinflight_bytes{name=\"db\",conn_name=\"bravo\",peer_node_id=\"1\"} 4096",
        "drbd_peerdevice_outofsync_bytes{name=\"db\",conn_name=\"bravo\",peer_node_id=\"1\",volume=\"0\"} 268435968",
        "drbd_peerdevice_sent_bytes{name=\"db\",conn_name=\"bravo\",peer_node_id=\"1\",volume=\"0\"} 3145728",
        "drbd_peerdevice_received_bytes{name=\"db\",conn_name=\"bravo\",peer_node_id=\"1\",volume=\"0\"} 1048576",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// Ours: base units, and latencies per operation and leg.
#[test]
fn series_of_our_own() {
    let text = scrape();
    for line in [
        "evenkeel_sessions{name=\"db\",transport=\"iscsi\"} 1",
        "evenkeel_sessions{name=\"db\",transport=\"nvme-tcp\"} 0",
        "evenkeel_connection_protocol{name=\"db\",conn_name=\"charlie\",protocol=\"A\"} 1",
        "evenkeel_peer_replication_state{name=\"db\",conn_name=\"bravo\",volume=\"0\",state=\"SyncSource\"} 1",
        "evenkeel_peer_disk_state{name=\"db\",conn_name=\"bravo\",volume=\"0\",state=\"Inconsistent\"} 1",
        "evenkeel_resync_remaining_seconds{name=\"db\",conn_name=\"bravo\",volume=\"0\"} 75",
        "evenkeel_peer_sent_bytes_total{name=\"db\",conn_name=\"bravo\",volume=\"0\"} 3145728",
        "evenkeel_initiator_latency_seconds_bucket{name=\"db\",operation=\"write\",le=\"0.000065536\"} 0",
        "evenkeel_initiator_latency_seconds_bucket{name=\"db\",operation=\"write\",le=\"0.000131072\"} 1",
        "evenkeel_initiator_latency_seconds_bucket{name=\"db\",operation=\"write\",le=\"+Inf\"} 2",
        "evenkeel_initiator_latency_seconds_count{name=\"db\",operation=\"write\"} 2",
        "evenkeel_initiator_latency_seconds_sum{name=\"db\",operation=\"write\"} 60.0001",
        "evenkeel_disk_latency_seconds_count{name=\"db\",operation=\"flush\"} 0",
        "evenkeel_peer_latency_seconds_count{name=\"db\",conn_name=\"charlie\",operation=\"write\"} 0",
        "evenkeel_logins_total{result=\"refused\"} 1",
        "evenkeel_peer_handshakes_total{result=\"accepted\"} 1",
        "evenkeel_connection_errors_total{from=\"peer\"} 0",
        "process_cpu_seconds_total 1.5",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.contains("evenkeel_build_info{version=\""));
}

/// The rules of `promtool check metrics`: each family once with help and type, units and suffixes as they should be.
#[test]
fn the_rules_of_promtool() {
    let text = scrape();
    let mut families = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a name and a type");
        assert!(families.insert(name), "{name} twice");
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        for word in name.split('_') {
            let wrong =
                ["ms", "us", "millis", "kb", "kib", "mb", "counter", "gauge", "histogram", "count", "sum"];
            assert!(!wrong.contains(&word), "{name} has {word} in it");
        }
    }
    assert!(families.len() > 40, "{families:?}");
    let mut series = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        assert!(series.insert(name), "{name} twice");
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
    }
}

/// `docs/metrics.md` has every series with its labels, and no other.
#[test]
fn the_reference_is_complete() {
    let text = scrape();
    let reference = include_str!("../../../docs/metrics.md");
    let documented: BTreeSet<(String, String)> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[0].trim_matches('`').to_owned(), cells[1].to_owned())
        })
        .collect();
    let families: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let labels = |family: &str| {
        let series = text.lines().find(|line| {
            let rest = line.strip_prefix(family).unwrap_or_default();
            rest.starts_with(['{', ' ']) || rest.starts_with("_count")
        });
        let inside =
            series.and_then(|series| Some(series.split_once('{')?.1.split_once('}')?.0)).unwrap_or_default();
        let names: Vec<&str> = inside.split(',').filter_map(|label| Some(label.split_once('=')?.0)).collect();
        names.join(", ")
    };
    let exported =
        families.iter().map(|family| ((*family).to_owned(), labels(family))).collect::<BTreeSet<_>>();
    assert_eq!(documented, exported);
}

/// Security: no label has a value that an initiator chose.
#[test]
fn initiators_choose_no_label() {
    assert!(!scrape().contains("iqn."));
}

/// A node without resources is scraped too.
#[test]
fn nothing_is_fine() {
    let text = render(&Scrape {
        resources: &[],
        names: &names(),
        latencies: &[],
        counters: &Counters::default(),
        process: None,
    });
    assert!(text.contains("drbd_resource_resources 0"));
}
