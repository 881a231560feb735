//! What initiators may log in to: the configuration's exports, seen from the login phase of iSCSI.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use anyhow::Context;
use ops::config::{self, Allow, Config};
use target_proto::iscsi::{
    chap::{Challenger, Credentials},
    login::{Access, Admission, Grant},
    pdu::Isid,
};

use crate::daemon::{portal_group, secrets};

/// The exports of a node. Shared by all logins.
#[derive(Debug)]
pub struct Catalog {
    targets: Vec<Listed>,
    portal_group: u16,
    challenger: Challenger,
    sessions: Mutex<BTreeSet<Session>>,
}

/// One target.
#[derive(Debug)]
struct Listed {
    iqn: String,
    place: usize,
    allow: Allow,
    chap: Option<Credentials>,
    mutual: Option<Credentials>,
    portals: Vec<Portal>,
}

/// Where a target can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// As the configuration has it. An unspecified IP address of this node stands for the one that the initiator used.
    pub address: config::Address,
    /// TargetPortalGroupTag: one for each node.
    pub group: u16,
}

/// A session as its name (RFC 7143 4.4.3) tells it from others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session {
    /// The name of the target.
    pub target: String,
    /// The name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The target's part.
    pub tsih: u16,
}

impl Catalog {
    /// The exports of the node `own`.
    ///
    /// # Errors
    /// When a secret cannot be read or is no good, or the system has no random bytes.
    pub fn new(config: &Config, own: &config::Node) -> anyhow::Result<Self> {
        let portals = portals(config, own);
        let listed = |(place, resource): (usize, &config::Resource)| -> anyhow::Result<Listed> {
            let export = &resource.export;
            let (chap, mutual) = credentials(export)?;
            Ok(Listed {
                iqn: export.iqn.clone(),
                place,
                allow: export.allow.clone(),
                chap,
                mutual,
                portals: portals.clone(),
            })
        };
        let mut key = [0; 32];
        getrandom::fill(&mut key).context("the system gives no random bytes")?;
        Ok(Self {
            targets: config.resources.iter().enumerate().map(listed).collect::<Result<_, _>>()?,
            portal_group: portal_group(own.id),
            challenger: Challenger::new(key),
            sessions: Mutex::default(),
        })
    }

    /// The place in the configuration of the resource that is exported by this name.
    #[must_use]
    pub fn place(&self, iqn: &str) -> Option<usize> {
        self.targets.iter().find(|target| target.iqn == iqn).map(|target| target.place)
    }

    /// The targets that an initiator may use, and where they are reached: what SendTargets tells it.
    pub fn targets(&self, initiator: &str) -> impl Iterator<Item = (&str, &[Portal])> {
        self.targets
            .iter()
            .filter(move |target| target.allow.permits(initiator))
            .map(|target| (target.iqn.as_str(), target.portals.as_slice()))
    }

    /// A session has begun.
    pub fn opened(&self, session: Session) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(session);
    }

    /// A session has ended.
    pub fn closed(&self, session: &Session) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }
}

impl Admission for Catalog {
    fn admit(&self, initiator: &str, target: &str) -> Access {
        let Some(target) = self.targets.iter().find(|listed| listed.iqn == target) else {
            return Access::NotFound;
        };
        if !target.allow.permits(initiator) {
            return Access::Forbidden;
        }
        Access::Granted(Grant {
            portal_group: self.portal_group,
            chap: target.chap.clone(),
            mutual: target.mutual.clone(),
        })
    }

    fn has_session(&self, target: &str, initiator: &str, isid: Isid, tsih: u16) -> bool {
        let session = Session { target: target.to_owned(), initiator: initiator.to_owned(), isid, tsih };
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).contains(&session)
    }

    fn challenger(&self) -> &Challenger {
        &self.challenger
    }

    fn random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system gave random bytes when the node started");
    }
}

/// The portals of every node, this one's first: what is listened on, or what the configuration advertises instead.
fn portals(config: &Config, own: &config::Node) -> Vec<Portal> {
    let others = config.nodes.iter().filter(|node| node.id != own.id);
    std::iter::once(own)
        .chain(others)
        .flat_map(|node| {
            let group = portal_group(node.id);
            node.iscsi_advertised().iter().map(move |address| Portal { address: address.clone(), group })
        })
        .filter(|portal| portal.group == portal_group(own.id) || !is_unspecified(&portal.address))
        .collect()
}

/// Whether an address stands for all of a machine's: of another node, it says nothing about how to reach it.
#[must_use]
pub fn is_unspecified(address: &config::Address) -> bool {
    matches!(address, config::Address::Ip(address) if address.ip().is_unspecified())
}

fn credentials(export: &config::Export) -> anyhow::Result<(Option<Credentials>, Option<Credentials>)> {
    let chap =
        export.chap.as_ref().map(|chap| secrets::chap(chap).map(|secret| (chap, secret))).transpose()?;
    let mutual = export
        .chap_mutual
        .as_ref()
        .map(|chap| secrets::chap(chap).map(|secret| (chap, secret)))
        .transpose()?;
    if let (Some((_, chap)), Some((_, mutual))) = (&chap, &mutual) {
        config::differ(chap, mutual).with_context(|| format!("target {}", export.iqn))?;
    }
    let made = |(chap, secret): (&config::Chap, config::Secret)| Credentials {
        user: chap.user.clone(),
        secret: secret.bytes().to_vec().into(),
    };
    Ok((chap.map(made), mutual.map(made)))
}
