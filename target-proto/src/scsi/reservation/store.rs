//! Reservations as bytes in a file, so that they outlive a loss of power (APTPL, SPC-4 5.13.5).
//!
//! A version, the registry, a CRC32C.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, checksum};
use thiserror::Error;

use super::super::length::len16;
use super::registry::{REGISTRATIONS_MAX, Registration, Registry, Reservation};
use super::{Key, Registrant, ReservationType};

/// Stored reservations can not be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// They end early.
    #[error("stored reservations end within a field")]
    Truncated,
    /// They are of no version that we know.
    #[error("stored reservations have the unknown version {0}")]
    Version(u32),
    /// The checksum does not match.
    #[error("stored reservations have the checksum {stored:#010x}, their bytes have {computed:#010x}")]
    Checksum {
        /// As stored.
        stored: u32,
        /// As the bytes have it.
        computed: u32,
    },
    /// A field has a value that we never store.
    #[error("stored reservations have an impossible {0}")]
    Impossible(&'static str),
}

impl Registry {
    /// The registry as stored bytes: all of it when it is [`Self::persistent`], and only its generation otherwise.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let empty = Self { generation: self.generation, ..Self::default() };
        let stored = if self.persistent { self } else { &empty };
        let mut bytes = BytesMut::new();
        bytes.put_u32(VERSION);
        bytes.put_u32(stored.generation);
        bytes.put_u8(stored.persistent.into());
        bytes.put_u8(stored.reservation.as_ref().map_or(0, |reservation| reservation.kind as u8));
        if let Some(reservation) = &stored.reservation {
            put_registrant(&mut bytes, &reservation.holder);
        }
        bytes.put_u16(len16(stored.registrations.len()));
        for entry in &stored.registrations {
            bytes.put_u64(entry.key.0);
            put_registrant(&mut bytes, &entry.registrant);
        }
        let checksum = crc(&bytes);
        bytes.put_u32(checksum);
        bytes.freeze()
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are not what was written.
    pub fn decode(stored: &[u8]) -> Result<Self, RestoreError> {
        let body_len = stored.len().checked_sub(CHECKSUM_LEN).ok_or(RestoreError::Truncated)?;
        let (mut body, mut checksum) = stored.split_at(body_len);
        let (stored, computed) = (checksum.get_u32(), crc(body));
        if stored != computed {
            return Err(RestoreError::Checksum { stored, computed });
        }
        let version = body.try_get_u32().map_err(|_| RestoreError::Truncated)?;
        if version != VERSION {
            return Err(RestoreError::Version(version));
        }
        let generation = body.try_get_u32().map_err(|_| RestoreError::Truncated)?;
        let persistent = body.try_get_u8().map_err(|_| RestoreError::Truncated)? != 0;
        let reservation = match body.try_get_u8().map_err(|_| RestoreError::Truncated)? {
            0 => None,
            code => Some(Reservation {
                kind: ReservationType::from_code(code).ok_or(RestoreError::Impossible("type"))?,
                holder: get_registrant(&mut body)?,
            }),
        };
        let count = usize::from(body.try_get_u16().map_err(|_| RestoreError::Truncated)?);
        if count > REGISTRATIONS_MAX {
            return Err(RestoreError::Impossible("number of registrations"));
        }
        let mut registry = Self { generation, persistent, registrations: Vec::new(), reservation };
        for _ in 0..count {
            let key = Key(body.try_get_u64().map_err(|_| RestoreError::Truncated)?);
            let registrant = get_registrant(&mut body)?;
            registry.registrations.push(Registration { registrant, key });
        }
        if body.is_empty() { Ok(registry) } else { Err(RestoreError::Impossible("length")) }
    }
}

fn put_registrant(bytes: &mut BytesMut, registrant: &Registrant) {
    let name = &registrant.initiator.as_bytes()[..registrant.initiator.len().min(usize::from(u16::MAX))];
    bytes.put_u16(registrant.port);
    bytes.put_u16(len16(name.len()));
    bytes.put_slice(name);
}

fn get_registrant(bytes: &mut &[u8]) -> Result<Registrant, RestoreError> {
    let port = bytes.try_get_u16().map_err(|_| RestoreError::Truncated)?;
    let len = usize::from(bytes.try_get_u16().map_err(|_| RestoreError::Truncated)?);
    let (name, rest) = bytes.split_at_checked(len).ok_or(RestoreError::Truncated)?;
    *bytes = rest;
    let initiator = String::from_utf8(name.to_vec()).map_err(|_| RestoreError::Impossible("name"))?;
    Ok(Registrant { initiator, port })
}

fn crc(bytes: &[u8]) -> u32 {
    let [_, _, _, _, low @ ..] = checksum(CrcAlgorithm::Crc32Iscsi, bytes).to_be_bytes();
    u32::from_be_bytes(low)
}

const VERSION: u32 = 1;
const CHECKSUM_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::registry::tests::reserved;
    use super::*;

    /// APTPL: what was stored comes back, and nothing else does.
    #[test]
    fn stored_bytes_come_back() {
        let (mut registry, who) = reserved(ReservationType::ExclusiveAccessRegistrantsOnly);
        assert_eq!(Registry::decode(&registry.encode()).map(|registry| registry.is_empty()), Ok(true));
        registry.register(&who[0], Key(1), Key(5), true).unwrap();
        let stored = registry.encode();
        assert_eq!(Registry::decode(&stored), Ok(registry));
        for len in 0..stored.len() {
            assert!(Registry::decode(&stored[..len]).is_err(), "cut at {len}");
        }
        for bit in 0..stored.len() * 8 {
            let mut bytes = stored.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Registry::decode(&bytes).is_err(), "bit {bit}");
        }
    }
}
