//! The picture in JSON and in words.

use block::VolumeNumber;
use serde_json::Value;

use super::*;
use crate::config::Secret;

/// Two nodes and a client, as `alpha` sees them in the middle of a resync to `bravo`.
pub(crate) fn resource() -> Resource {
    Resource::new(&status(), vec![session("iqn.1993-08.org.debian:01:host1")], &names())
}

pub(crate) fn session(initiator: &str) -> Session {
    Session {
        initiator: initiator.to_owned(),
        transport: "iscsi".to_owned(),
        address: "127.0.0.1:50000".to_owned(),
    }
}

pub(crate) fn names() -> Names {
    let file = std::path::Path::new("/etc/evenkeel.toml");
    let config =
        Config::parse(file, include_bytes!("../../tests/contract.toml")).expect("it is right").config;
    let secret = Secret::cluster(b"0123456789abcdef".to_vec(), 0o600).expect("long enough");
    Names::new(&config, config.identity(Some(&secret)))
}

pub(crate) fn status() -> ResourceStatus {
    let peer_device = |replication_state, peer_disk_state, peer_client, out_of_sync| PeerDeviceStatus {
        volume: VolumeNumber(0),
        replication_state,
        peer_disk_state,
        peer_client,
        resync_suspended: None,
        received: 1 << 20,
        sent: 3 << 20,
        out_of_sync,
        pending: 2,
        unacked: 1,
        percent_in_sync: 74.999,
        estimated_seconds_to_finish: (out_of_sync > 0).then_some(75),
    };
    let connection = |peer, peer_role, protocol, peer_device| ConnectionStatus {
        peer: NodeId(peer),
        state: ConnectionState::Connected,
        trouble: None,
        peer_role,
        protocol,
        congested: false,
        ap_in_flight: 8192,
        rs_in_flight: 4096,
        peer_devices: vec![peer_device],
        parting: None,
    };
    ResourceStatus {
        name: "db".to_owned(),
        node: NodeId(0),
        role: Role::Primary,
        suspended: false,
        devices: vec![DeviceStatus {
            volume: VolumeNumber(0),
            disk_state: DiskState::UpToDate,
            trouble: None,
            client: false,
            quorum: true,
            size: 1 << 30,
            read: 10 << 20,
            written: 20 << 20,
            al_writes: 5,
            bm_writes: 6,
            upper_pending: 7,
            lower_pending: 8,
            generation: 0x1234_5678_9abc_def1,
            fresh: false,
        }],
        connections: vec![
            connection(
                1,
                Role::Secondary,
                AckMode::C,
                peer_device(ReplicationState::SyncSource, DiskState::Inconsistent, false, (256 << 20) + 512),
            ),
            connection(
                7,
                Role::Secondary,
                AckMode::A,
                peer_device(ReplicationState::Established, DiskState::Diskless, true, 0),
            ),
        ],
    }
}

/// The contract, Status as JSON: exactly these keys, those of DRBD and ours.
#[test]
fn the_keys_of_the_contract() {
    let json = serde_json::to_value([resource()]).expect("it serialises");
    let keys = |value: &Value| {
        let mut keys: Vec<String> = value.as_object().expect("an object").keys().cloned().collect();
        keys.sort();
        keys
    };
    let sorted = |list: &str| {
        let mut keys: Vec<String> = list.split_whitespace().map(str::to_owned).collect();
        keys.sort();
        keys
    };
    let db = &json[0];
    let ours = "write-ordering cluster-id generation sessions";
    assert_eq!(keys(db), sorted(&format!("name node-id role suspended devices connections {ours}")));
    assert_eq!(
        keys(&db["devices"][0]),
        sorted(
            "volume disk-state client quorum size read written al-writes bm-writes upper-pending lower-pending \
             generation"
        ),
    );
    assert_eq!(
        keys(&db["connections"][0]),
        sorted(
            "peer-node-id name connection-state congested peer-role tls ap-in-flight rs-in-flight peer_devices \
             protocol"
        ),
    );
    let peer_device = "volume replication-state peer-disk-state peer-client resync-suspended received sent out-of-sync \
                       pending unacked percent-in-sync";
    assert_eq!(
        keys(&db["connections"][0]["peer_devices"][0]),
        sorted(&format!("{peer_device} estimated-seconds-to-finish")),
    );
    assert_eq!(keys(&db["connections"][1]["peer_devices"][0]), sorted(peer_device));
    assert_eq!(keys(&db["sessions"][0]), sorted("initiator transport address"));
}

/// DRBD's spellings and units: KiB, and sectors in flight.
#[test]
fn values_are_spelled_as_drbd_does() {
    let json = serde_json::to_value(resource()).expect("it serialises");
    let (device, bravo) = (&json["devices"][0], &json["connections"][0]);
    assert_eq!((&json["role"], &json["node-id"]), (&"Primary".into(), &0.into()));
    assert_eq!((&device["size"], &device["read"]), (&1_048_576.into(), &10_240.into()));
    assert_eq!(device["generation"], "123456789ABCDEF1");
    assert_eq!((&bravo["name"], &bravo["protocol"]), (&"bravo".into(), &"C".into()));
    assert_eq!((&bravo["ap-in-flight"], &bravo["rs-in-flight"]), (&16.into(), &8.into()));
    let device = &bravo["peer_devices"][0];
    assert_eq!(
        (&device["replication-state"], &device["peer-disk-state"]),
        (&"SyncSource".into(), &"Inconsistent".into())
    );
    assert_eq!((&device["out-of-sync"], &device["resync-suspended"]), (&262_145.into(), &"no".into()));
    assert_eq!(device["percent-in-sync"], 74.99, "never more than is true");
}

/// What a client reads is what the node wrote, and a state from the future is an error.
#[test]
fn json_reads_back() {
    let resource = resource();
    let json = serde_json::to_string(&resource).expect("it serialises");
    assert_eq!(serde_json::from_str::<Resource>(&json).expect("it reads back"), resource);
    let future = json.replace("SyncSource", "Levitating");
    assert!(
        serde_json::from_str::<Resource>(&future)
            .expect_err("not a state")
            .to_string()
            .contains("Levitating")
    );
}

#[test]
fn text_looks_like_drbdadm_status() {
    let expected = "\
db role:Primary
  disk:UpToDate size:1GiB
  bravo role:Secondary protocol:C
    replication:SyncSource peer-disk:Inconsistent done:74.99
  charlie role:Secondary protocol:A
    peer-disk:Diskless client:yes
  session iqn.1993-08.org.debian:01:host1 iscsi 127.0.0.1:50000
";
    assert_eq!(render(&[resource()]), expected);
    assert!(watch(&[resource()]).contains("done:74.99 [==============>.....] 256MiB to copy 1m15s left"));
    assert_eq!(render(&[]), "no resource\n");
}

/// Every state that is not normal says what it means and what to do, with the names filled in; a normal one is silent.
#[test]
fn what_is_not_normal_is_explained() {
    assert_eq!(explain::findings(&resource()), []);
    let mut wrong = resource();
    wrong.suspended = true;
    wrong.devices[0].quorum = false;
    wrong.connections[0].connection_state = ConnectionState::StandAlone;
    let text = render(&[wrong.clone()]);
    for part in [
        "! suspended",
        "! volume 0: quorum:no",
        "! bravo: connection:StandAlone",
        "evenkeel connect db --peer bravo",
        "evenkeel connect db --discard-my-data",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let mut explained = 0;
    for &disk in DiskState::ALL {
        for &state in ConnectionState::ALL {
            for &replication in ReplicationState::ALL {
                wrong.devices[0].disk_state = disk;
                wrong.connections[0].connection_state = state;
                wrong.connections[0].peer_devices[0].peer_disk_state = disk;
                wrong.connections[0].peer_devices[0].replication_state = replication;
                for finding in explain::findings(&wrong) {
                    explained += 1;
                    assert!(!finding.remedy.is_empty() && !finding.meaning.is_empty());
                    assert!(
                        !finding.remedy.contains("RESOURCE") && !finding.remedy.contains("PEER"),
                        "{finding:?}"
                    );
                }
            }
        }
    }
    assert!(explained > 1000, "{explained}");
}

/// What is known of the cause stands in the text and in the JSON: an operator need not search the log.
#[test]
fn causes_are_told() {
    let mut wrong = resource();
    wrong.devices[0].disk_state = DiskState::Diskless;
    wrong.devices[0].trouble = Some("db0.img carries another label".to_owned());
    wrong.connections[0].connection_state = ConnectionState::Connecting;
    wrong.connections[0].trouble = Some("the other end does not know the secret".to_owned());
    let text = render(&[wrong.clone()]);
    for part in ["cause: db0.img carries another label", "cause: the other end does not know the secret"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("does not answer"), "it did answer: {text}");
    let json = serde_json::to_value([wrong]).expect("it serialises");
    assert_eq!(json[0]["devices"][0]["trouble"], "db0.img carries another label");
    assert_eq!(json[0]["connections"][0]["trouble"], "the other end does not know the secret");
}

/// `wait`: a client needs no disk to be up to date, everyone else does, and everyone has to be there.
#[test]
fn what_wait_waits_for() {
    let mut resource = resource();
    assert!(resource.is_connected() && !resource.is_up_to_date());
    resource.connections[0].peer_devices[0].peer_disk_state = DiskState::UpToDate;
    assert!(resource.is_up_to_date());
    resource.connections[1].connection_state = ConnectionState::Connecting;
    assert!(!resource.is_connected() && !resource.is_up_to_date());
}

/// P8: `why` shows what each side of a split brain wrote, and the commands that end it; the JSON carries the same.
#[test]
fn why_shows_both_sides_of_a_split_brain() {
    let mut status = status();
    let written = |changed, primary| replication::Written { changed, generation: 0xa1, since: 0xb2, primary };
    status.connections[0].state = ConnectionState::StandAlone;
    let (here, there) = (written(8192, true), written(4 << 20, false));
    let volumes = vec![replication::Divergence { volume: VolumeNumber(0), here, there }];
    status.connections[0].parting =
        Some(replication::Parting::Diverged { volumes, policy: "after-sb-0pri = \"disconnect\"".to_owned() });
    let resource = Resource::new(&status, Vec::new(), &names());
    let text = causes(std::slice::from_ref(&resource));
    for part in [
        "db: bravo: connection:StandAlone",
        "generation that both had: 00000000000000B2",
        "written here: at most 8KiB since then, generation 00000000000000A1, is Primary",
        "written on bravo: at most 4MiB since then",
        "no policy decided: after-sb-0pri = \"disconnect\"",
        "evenkeel connect db --discard-my-data",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let json = serde_json::to_value(&resource).expect("it serialises");
    assert_eq!(json["connections"][0]["parting"]["reason"], "split-brain");
    assert_eq!(json["connections"][0]["parting"]["volumes"][0]["there"]["changed"], 4096);
    assert_eq!(causes(&[self::resource()]), "db: nothing is wrong\n");
}

/// P12: a disk that was given up says with what, and what mends it.
#[test]
fn why_names_the_failure_of_a_disk() {
    let mut status = status();
    status.devices[0].disk_state = DiskState::Diskless;
    status.devices[0].trouble = Some(replication::DiskError::NoSpace.to_string());
    let text = causes(&[Resource::new(&status, Vec::new(), &names())]);
    assert!(text.contains("no space is left") && text.contains("make room"), "{text}");
}
