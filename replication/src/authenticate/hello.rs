//! The first message of each end.

use nom::{
    IResult, Parser,
    bytes::complete::take,
    combinator::{all_consuming, map_opt, verify},
    multi::length_data,
    number::complete::{be_u8, be_u16, be_u64},
};

use super::{
    AuthError, Message, NAME_MAX, Nonce,
    message::{HELLO, put_message},
};
use crate::NodeId;

/// Which end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Dialler,
    Acceptor,
}

/// A hello, in the order of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) versions: (u16, u16),
    pub(super) features: u64,
    pub(super) role: Role,
    pub(super) sender: NodeId,
    pub(super) receiver: NodeId,
    pub(super) instance: u64,
    pub(super) nonce: Nonce,
    pub(super) cluster: String,
    pub(super) resource: String,
}

impl Hello {
    pub(super) fn read(message: &Message) -> Result<Self, AuthError> {
        let body = message.body(HELLO)?;
        let (_, hello) = all_consuming(hello).parse(body).map_err(|_| message.malformed())?;
        Ok(hello)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let role = match self.role {
            Role::Dialler => DIALLER,
            Role::Acceptor => ACCEPTOR,
        };
        let mut message = Vec::new();
        let body: [&[u8]; 10] = [
            &self.versions.0.to_be_bytes(),
            &self.versions.1.to_be_bytes(),
            &self.features.to_be_bytes(),
            &[role, self.sender.0, self.receiver.0],
            &self.instance.to_be_bytes(),
            &self.nonce,
            &name_len(&self.cluster),
            self.cluster.as_bytes(),
            &name_len(&self.resource),
            self.resource.as_bytes(),
        ];
        put_message(HELLO, &body, &mut message);
        message
    }
}

fn hello(input: &[u8]) -> IResult<&[u8], Hello> {
    let (rest, (versions, features, role, sender, receiver, instance, nonce, cluster, resource)) = (
        verify((be_u16, be_u16), |&(lowest, highest): &(u16, u16)| lowest <= highest),
        be_u64,
        map_opt(be_u8, role),
        node,
        node,
        be_u64,
        map_opt(take(size_of::<Nonce>()), |nonce: &[u8]| Nonce::try_from(nonce).ok()),
        name,
        name,
    )
        .parse(input)?;
    Ok((rest, Hello { versions, features, role, sender, receiver, instance, nonce, cluster, resource }))
}

const fn role(code: u8) -> Option<Role> {
    match code {
        DIALLER => Some(Role::Dialler),
        ACCEPTOR => Some(Role::Acceptor),
        _ => None,
    }
}

fn node(input: &[u8]) -> IResult<&[u8], NodeId> {
    map_opt(be_u8, |node| (node < 32).then_some(NodeId(node))).parse(input)
}

fn name(input: &[u8]) -> IResult<&[u8], String> {
    map_opt(length_data(be_u8), |name: &[u8]| String::from_utf8(name.to_vec()).ok()).parse(input)
}

fn name_len(name: &str) -> [u8; 1] {
    [u8::try_from(name.len()).unwrap_or_else(|_| panic!("a name of more than {NAME_MAX} bytes"))]
}

const DIALLER: u8 = 1;
const ACCEPTOR: u8 = 2;
