//! PERSISTENT RESERVE IN and OUT as bytes (SPC-4 6.15, 6.16): between the registry and the wire.

use bytes::{BufMut as _, BytesMut};
use nom::bytes::complete::take;
use nom::error::Error;
use nom::number::complete::{be_u8, be_u16, be_u32, be_u64};

use super::length::{len16, len32};
use super::operation::PersistentAction;
use super::reservation::{Consequences, Key, Refusal, Registrant, Registry, ReservationType};
use super::sense::{Additional, Sense};
use super::{InitiatorPort, RelativePort};

/// READ KEYS (SPC-4 6.15.2).
pub(super) fn keys(registry: &Registry) -> BytesMut {
    let mut list = BytesMut::new();
    for (_, key, _) in registry.registrants() {
        list.put_u64(key.0);
    }
    with_header(registry, &list)
}

/// READ RESERVATION (SPC-4 6.15.3).
pub(super) fn reservation(registry: &Registry) -> BytesMut {
    let mut list = BytesMut::new();
    if let Some((kind, key)) = registry.reservation() {
        list.put_u64(key.0);
        list.put_slice(&[0, 0, 0, 0, 0, kind as u8, 0, 0]);
    }
    with_header(registry, &list)
}

/// REPORT CAPABILITIES (SPC-4 6.15.4).
pub(super) fn capabilities(registry: &Registry) -> BytesMut {
    let mut data = BytesMut::with_capacity(8);
    data.put_u16(8);
    let activated = if registry.persistent() { PTPL_A } else { 0 };
    data.put_slice(&[SIP_C | PTPL_C, TMV | activated]);
    data.put_slice(&TYPE_MASK);
    data.put_u16(0);
    data
}

/// READ FULL STATUS (SPC-4 6.15.5).
pub(super) fn full_status(registry: &Registry) -> BytesMut {
    let mut list = BytesMut::new();
    let kind = registry.reservation().map_or(0, |(kind, _)| kind as u8);
    for (registrant, key, holds) in registry.registrants() {
        let transport = put_transport(&registrant.initiator);
        list.put_u64(key.0);
        list.put_u32(0);
        list.put_slice(if holds { &[R_HOLDER][..] } else { &[0] });
        list.put_slice(&[if holds { kind } else { 0 }, 0, 0, 0, 0]);
        list.put_u16(registrant.port);
        list.put_u32(len32(transport.len()));
        list.put_slice(&transport);
    }
    with_header(registry, &list)
}

fn with_header(registry: &Registry, list: &[u8]) -> BytesMut {
    let mut data = BytesMut::with_capacity(8 + list.len());
    data.put_u32(registry.generation());
    data.put_u32(len32(list.len()));
    data.put_slice(list);
    data
}

/// Carries out PERSISTENT RESERVE OUT of `who`, whose target port is `port`.
pub(super) fn out(
    registry: &mut Registry,
    who: &Registrant,
    port: RelativePort,
    (action, kind): (PersistentAction, Option<ReservationType>),
    list: &[u8],
) -> Result<Consequences, PersistentError> {
    if action == PersistentAction::RegisterAndMove {
        return register_and_move(registry, who, port, list);
    }
    let basic = Basic::read(list)?;
    let (key, new) = (basic.key, basic.service_action_key);
    let kind_known = || kind.ok_or(Sense::cdb_bit(2, 3));
    let registers = matches!(action, PersistentAction::Register | PersistentAction::RegisterAndIgnore);
    if registers && basic.flags & ALL_TG_PT != 0 {
        return Err(Sense::parameter_bit(20, 2).into());
    }
    if basic.flags & SPEC_I_PT != 0 {
        if action != PersistentAction::Register {
            return Err(Sense::parameter_bit(20, 3).into());
        }
        let others = transports(&list[BASIC_LEN..], port)?;
        if key != Key(0) {
            return Err(Refusal::Conflict.into());
        }
        if new == Key(0) {
            return Err(Refusal::InvalidParameter.into());
        }
        return Ok(registry.register_others(who, &others, new, basic.flags & APTPL != 0)?);
    }
    if list.len() != BASIC_LEN {
        return Err(LIST_LENGTH.into());
    }
    let persistent = basic.flags & APTPL != 0;
    let consequences = match action {
        PersistentAction::Register => registry.register(who, key, new, persistent)?,
        PersistentAction::RegisterAndIgnore => registry.register_and_ignore(who, new, persistent)?,
        PersistentAction::Reserve => {
            registry.reserve(who, key, kind_known()?)?;
            Consequences::default()
        }
        PersistentAction::Release => registry.release(who, key, kind_known()?)?,
        PersistentAction::Clear => registry.clear(who, key)?,
        PersistentAction::Preempt | PersistentAction::PreemptAndAbort => {
            registry.preempt(who, key, new, kind)?
        }
        PersistentAction::RegisterAndMove => return Err(LIST_LENGTH.into()),
    };
    Ok(consequences)
}

/// Why PERSISTENT RESERVE OUT fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PersistentError {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Sense(Sense),
}

impl From<Sense> for PersistentError {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

impl From<Refusal> for PersistentError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Conflict => Self::Conflict,
            Refusal::InvalidRelease => Sense::illegal(Additional::INVALID_RELEASE).into(),
            Refusal::InvalidParameter => Sense::parameter_byte(8).into(),
            Refusal::InvalidType => Sense::cdb_bit(2, 3).into(),
            Refusal::Full => Sense::illegal(Additional::REGISTRATION_RESOURCES).into(),
        }
    }
}

/// The basic parameter list (SPC-4 table 220).
struct Basic {
    key: Key,
    service_action_key: Key,
    flags: u8,
}

impl Basic {
    fn read(list: &[u8]) -> Result<Self, Sense> {
        let fields = (be_u64, be_u64, take(4_usize), be_u8, take(3_usize));
        let (_, (key, service_action_key, _, flags, _)) = parse(fields, list)?;
        Ok(Self { key: Key(key), service_action_key: Key(service_action_key), flags })
    }
}

/// REGISTER AND MOVE has a parameter list of its own (SPC-4 6.16.4).
fn register_and_move(
    registry: &mut Registry,
    who: &Registrant,
    port: RelativePort,
    list: &[u8],
) -> Result<Consequences, PersistentError> {
    let fields = (be_u64, be_u64, be_u8, be_u8, be_u16, be_u32);
    let (transport, (key, new, _, flags, relative, transport_len)) = parse(fields, list)?;
    if transport.len() != transport_len as usize {
        return Err(LIST_LENGTH.into());
    }
    if relative != port.0 {
        return Err(Sense::parameter_byte(18).into());
    }
    let (rest, initiator) = get_transport(transport)?;
    if !rest.is_empty() {
        return Err(LIST_LENGTH.into());
    }
    let to = Registrant { initiator, port: relative };
    let (unregister, persistent) = (flags & UNREG != 0, flags & APTPL != 0);
    Ok(registry.register_and_move(who, Key(key), &to, Key(new), unregister, persistent)?)
}

/// The additional parameter data of REGISTER: a length and transport identifiers (SPC-4 table 222).
fn transports(data: &[u8], port: RelativePort) -> Result<Vec<Registrant>, Sense> {
    let (mut rest, len) = parse(be_u32, data)?;
    if rest.len() != len as usize {
        return Err(LIST_LENGTH);
    }
    let mut registrants = Vec::new();
    while !rest.is_empty() {
        let (behind, initiator) = get_transport(rest)?;
        registrants.push(Registrant { initiator, port: port.0 });
        rest = behind;
    }
    Ok(registrants)
}

/// The transport identifier of an iSCSI initiator port (SPC-4 7.6.4.6): the name that [`InitiatorPort`] displays as.
fn put_transport(initiator: &str) -> BytesMut {
    let mut name = initiator.as_bytes().to_vec();
    name.resize(((name.len() / 4 + 1) * 4).max(TRANSPORT_NAME_LEN_MIN), 0);
    let mut transport = BytesMut::with_capacity(4 + name.len());
    transport.put_slice(&[ISCSI_PORT, 0]);
    transport.put_u16(len16(name.len()));
    transport.put_slice(&name);
    transport
}

/// Reads one transport identifier off the start. A port is named, not a whole initiator device, whose ports we can not know.
fn get_transport(data: &[u8]) -> Result<(&[u8], String), Sense> {
    let (rest, (format, _, len)) = parse((be_u8, be_u8, be_u16), data)?;
    let (rest, name) = parse(take(len), rest)?;
    if format != ISCSI_PORT {
        return Err(INVALID_TRANSPORT);
    }
    let end = name.iter().position(|byte| *byte == 0).ok_or(INVALID_TRANSPORT)?;
    let name = std::str::from_utf8(&name[..end]).map_err(|_| INVALID_TRANSPORT)?;
    let port = InitiatorPort::parse(name).ok_or(INVALID_TRANSPORT)?;
    Ok((rest, port.to_string()))
}

fn parse<'a, P>(mut parser: P, list: &'a [u8]) -> Result<(&'a [u8], P::Output), Sense>
where
    P: nom::Parser<&'a [u8], Error = Error<&'a [u8]>>,
{
    parser.parse(list).map_err(|_| LIST_LENGTH)
}

const LIST_LENGTH: Sense = Sense::illegal(Additional::PARAMETER_LIST_LENGTH);
const INVALID_TRANSPORT: Sense = Sense::parameter_byte(24);
const BASIC_LEN: usize = 24;
const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;
const UNREG: u8 = 0x02;

/// Other initiator ports can be registered, and registrations outlive a loss of power.
const SIP_C: u8 = 0x08;
const PTPL_C: u8 = 0x01;
const TMV: u8 = 0x80;
const PTPL_A: u8 = 0x01;
/// All six types.
const TYPE_MASK: [u8; 2] = [0xea, 0x01];
const R_HOLDER: u8 = 0x01;
/// Format 01b (a port), protocol 5h.
const ISCSI_PORT: u8 = 0x45;
const TRANSPORT_NAME_LEN_MIN: usize = 20;
