//! A discovery session: it only asks which targets there are (RFC 7143 4.3.2).

use std::{io, net::SocketAddr, time::Instant};

use block::VolumeNumber;
use bytes::BytesMut;
use ops::config::Address;
use target_proto::{
    iscsi::{
        connection::{Connection, DiscoveredTarget, Effect, Host},
        pdu::Output,
    },
    scsi::{Response, ScsiStatus, Transfer},
};
use tokio::{io::AsyncReadExt, net::TcpStream};
use tracing::{debug, warn};

use super::{
    catalog::{Catalog, Portal, is_unspecified},
    listener::{Accepted, send},
};

/// Serves a discovery session until it ends.
pub(super) async fn serve(accepted: Accepted) {
    let address = accepted.address;
    if let Err(error) = run(accepted).await {
        debug!(%address, %error, "discovery session broke");
    }
}

async fn run(accepted: Accepted) -> io::Result<()> {
    let Accepted { stream, address, portal, ready, mut received, catalog } = accepted;
    let mut stream = TcpStream::from_std(stream)?;
    let started = Instant::now();
    let mut output = Output::new();
    let established = ready.accept(DISCOVERY_TSIH, &mut output);
    let host = Discovery { catalog: &catalog, portal };
    let mut connection = Connection::new(established, output, started.elapsed());
    let mut effects = Vec::new();
    loop {
        connection.receive(started.elapsed(), &mut received, &host, &mut effects);
        let wake = connection.tick(started.elapsed(), &mut effects);
        while let Some(effect) = effects.pop() {
            answer(&mut connection, effect, address, &mut effects);
        }
        send(&mut stream, connection.output()).await?;
        if connection.is_closed() {
            return Ok(());
        }
        let pause = wake.saturating_sub(started.elapsed());
        // No answer in time is for `tick` to judge.
        if let Ok(read) = tokio::time::timeout(pause, read(&mut stream, &mut received)).await
            && read? == 0
        {
            return Ok(());
        }
    }
}

async fn read(stream: &mut TcpStream, received: &mut BytesMut) -> io::Result<usize> {
    stream.read_buf(received).await
}

/// There is nothing to execute in a discovery session.
fn answer(connection: &mut Connection, effect: Effect, address: SocketAddr, effects: &mut Vec<Effect>) {
    match effect {
        Effect::Execute(execute) => {
            connection.complete(execute.task, &Response::status(ScsiStatus::Busy), effects);
        }
        Effect::Rejected(reason, _) => warn!(%address, ?reason, "rejected a PDU of a discovery session"),
        Effect::Close(reason) => debug!(%address, %reason, "discovery session ends"),
        Effect::Abort(_) | Effect::Manage(_) => {}
    }
}

/// What a discovery session may see.
#[derive(Debug)]
struct Discovery<'a> {
    catalog: &'a Catalog,
    portal: SocketAddr,
}

impl Host for Discovery<'_> {
    fn transfer(&self, _lun: u64, _cdb: &[u8; 16]) -> Transfer {
        Transfer::default()
    }

    fn volume(&self, _lun: u64) -> Option<VolumeNumber> {
        None
    }

    fn targets(&self, initiator: &str) -> Vec<DiscoveredTarget> {
        discovered(self.catalog, initiator, self.portal)
    }
}

/// The targets that an initiator may use. `portal` is the address by which it reached this node.
pub(super) fn discovered(catalog: &Catalog, initiator: &str, portal: SocketAddr) -> Vec<DiscoveredTarget> {
    let reached = |listed: &Portal| match &listed.address {
        Address::Ip(address) if is_unspecified(&listed.address) => {
            SocketAddr::new(portal.ip(), address.port()).to_string()
        }
        address => address.to_string(),
    };
    let target = |(name, portals): (&str, &[Portal])| DiscoveredTarget {
        name: name.to_owned(),
        portals: portals.iter().map(|listed| (reached(listed), listed.group)).collect(),
    };
    catalog.targets(initiator).map(target).collect()
}

/// Discovery sessions are never named again, so they may have the same handle.
const DISCOVERY_TSIH: u16 = 1;
