//! The words of a trace.

use block::Status;
use replication::Packet;

use crate::{
    client::Request,
    disk::{self, Pending},
};

pub(crate) fn brief(packet: &Packet) -> String {
    match packet {
        Packet::Write { sequence, extent, data, mode, missing, .. } => {
            format!(
                "Write {} {extent} {:?} {mode:?} missing {missing}",
                sequence.0,
                disk::decode(data).first()
            )
        }
        Packet::SyncData { extent, data, .. } => {
            format!("SyncData {extent} {:?}", disk::decode(data).first())
        }
        Packet::ReadData { read, data } => format!("ReadData {read} {:?}", disk::decode(data).first()),
        packet => format!("{packet:?}"),
    }
}

pub(crate) fn brief_request(pending: &Pending) -> String {
    let line = format!("{pending:?}");
    line.chars().take(90).collect()
}

pub(crate) fn brief_command(request: &Request) -> String {
    format!("{:?} {} {} {:?}", request.verb, request.volume, request.extent, request.values.first())
}

pub(crate) fn brief_status(status: &Status) -> String {
    match status {
        Status::Data(data) => format!("data {:?}", disk::decode(data)),
        status => format!("{status:?}"),
    }
}
