//! INQUIRY: what the unit is (SPC-4 6.6) and its vital product data (SPC-4 7.8, SBC-3 6.6).

use bytes::{BufMut as _, BytesMut};

use super::length::{len8, len16, len32};
use super::sense::Sense;
use super::unit::{COMPARE_AND_WRITE_MAX, TRANSFER_OPTIMAL_BYTES, UNMAP_DESCRIPTORS_MAX, Unit};
use super::{TargetIdentity, VolumeIdentity, copy};

/// The standard INQUIRY data.
pub(super) fn standard() -> BytesMut {
    let mut data = BytesMut::with_capacity(STANDARD_LEN);
    data.put_slice(&[DISK, 0, SPC_4, HISUP | FORMAT_2, len8(STANDARD_LEN - 5)]);
    data.put_slice(&[TPGS_IMPLICIT | THIRD_PARTY_COPY, MULTIP, CMDQUE]);
    data.put_slice(VENDOR);
    data.put_slice(PRODUCT);
    data.put_slice(REVISION);
    data.put_bytes(0, VERSIONS_AT - data.len());
    for version in VERSIONS {
        data.put_u16(version);
    }
    data.put_bytes(0, STANDARD_LEN - data.len());
    data
}

/// What is told of a LUN where there is nothing (SPC-4 6.6.2, peripheral qualifier 011b).
pub(super) fn absent() -> BytesMut {
    let mut data = standard();
    data[0] = NOTHING;
    data
}

/// A page of vital product data.
pub(super) fn vital(code: u8, unit: &Unit, target: &TargetIdentity) -> Result<BytesMut, Sense> {
    let mut page = BytesMut::new();
    match code {
        0x00 => page.put_slice(&PAGES),
        0x80 => page.put_slice(serial(unit.config.identity).as_bytes()),
        0x83 => put_designators(&mut page, unit, target),
        0x86 => {
            page.put_slice(&[0, SIMPSUP | ORDSUP | HEADSUP, V_SUP, LUICLR]);
            page.put_bytes(0, 60 - page.len());
        }
        0x8f => copy::put_page(&mut page, unit.block_exponent()),
        0xb0 => put_block_limits(&mut page, unit),
        0xb1 => {
            page.put_u16(NOT_ROTATING);
            page.put_bytes(0, 60 - page.len());
        }
        0xb2 => {
            let (ways, kind) =
                if unit.config.thin { (LBPU | LBPWS | LBPWS10 | LBPRZ, THIN) } else { (0, FULLY) };
            page.put_slice(&[0, ways, kind, 0]);
        }
        _ => return Err(Sense::cdb_byte(2)),
    }
    let mut data = BytesMut::with_capacity(4 + page.len());
    data.put_slice(&[DISK, code]);
    data.put_u16(len16(page.len()));
    data.put_slice(&page);
    Ok(data)
}

/// The serial number, equal on all nodes.
fn serial(identity: VolumeIdentity) -> String {
    format!("{:032x}", identity.0)
}

/// NAA of the type IEEE Registered Extended (SPC-4 7.8.6.6.5). The company identifier is a locally administered one,
/// so that it is no other company's; the rest is from the volume's identity.
fn naa(identity: VolumeIdentity) -> u128 {
    (6 << 124) | (LOCAL_COMPANY << 100) | (identity.0 & ((1 << 100) - 1))
}

/// Whether a designator that page 83h tells of a unit is this one. `kind` is CODE SET, and the byte behind it. The
/// other name that the page has is longer than EXTENDED COPY can say.
pub(super) fn is_named(unit: &Unit, kind: (u8, u8), designator: &[u8]) -> bool {
    kind == (BINARY, OF_UNIT | NAA) && designator == naa(unit.config.identity).to_be_bytes()
}

fn put_designators(page: &mut BytesMut, unit: &Unit, target: &TargetIdentity) {
    let identity = unit.config.identity;
    put_designator(page, BINARY, OF_UNIT | NAA, &naa(identity).to_be_bytes());
    put_designator(page, ASCII, OF_UNIT | T10_VENDOR, &[VENDOR, serial(identity).as_bytes()].concat());
    let relative = u32::from(target.port.relative.0).to_be_bytes();
    put_designator(page, ISCSI | BINARY, PIV | OF_PORT | RELATIVE_PORT, &relative);
    let group = u32::from(target.port.group.0).to_be_bytes();
    put_designator(page, ISCSI | BINARY, PIV | OF_PORT | PORT_GROUP, &group);
    let port = format!("{},t,0x{:04x}", target.iqn, target.port.portal_group);
    put_designator(page, ISCSI | UTF_8, PIV | OF_PORT | SCSI_NAME, &padded(&port));
    put_designator(page, ISCSI | UTF_8, PIV | OF_TARGET | SCSI_NAME, &padded(&target.iqn));
}

fn put_designator(page: &mut BytesMut, code_set: u8, kind: u8, designator: &[u8]) {
    page.put_slice(&[code_set, kind, 0, len8(designator.len())]);
    page.put_slice(designator);
}

/// A SCSI name string: ends in NUL, its length a multiple of 4, at most 252 bytes (SPC-4 7.8.6.11).
fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes()[..name.len().min(NAME_LEN_MAX)].to_vec();
    bytes.resize((bytes.len() / 4 + 1) * 4, 0);
    bytes
}

/// SBC-3 6.6.4.
fn put_block_limits(page: &mut BytesMut, unit: &Unit) {
    let granularity = PHYSICAL_LEN / unit.block_len();
    page.put_slice(&[WSNZ, COMPARE_AND_WRITE_MAX]);
    page.put_u16(len16(granularity as usize));
    page.put_u32(unit.transfer_max());
    page.put_u32(TRANSFER_OPTIMAL_BYTES / unit.block_len());
    page.put_u32(0);
    if unit.config.thin {
        page.put_u32(unit.unmap_max());
        page.put_u32(len32(UNMAP_DESCRIPTORS_MAX));
        page.put_u32(granularity);
        page.put_u32(UGAVALID);
    } else {
        page.put_bytes(0, 16);
    }
    page.put_u64(unit.write_same_max().into());
    page.put_bytes(0, 60 - page.len());
}

/// The pages there are, in ascending order.
const PAGES: [u8; 8] = [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2];

const STANDARD_LEN: usize = 74;
const VERSIONS_AT: usize = 58;
/// SAM-5, SPC-4, SBC-3, iSCSI, of no particular revision (SPC-4 annex E.4).
const VERSIONS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];
const DISK: u8 = 0x00;
const NOTHING: u8 = 0x7f;
const SPC_4: u8 = 0x06;
const HISUP: u8 = 0x10;
const FORMAT_2: u8 = 0x02;
const TPGS_IMPLICIT: u8 = 0x10;
/// 3PC.
const THIRD_PARTY_COPY: u8 = 0x08;
const MULTIP: u8 = 0x10;
const CMDQUE: u8 = 0x02;
const VENDOR: &[u8; 8] = b"EVENKEEL";
const PRODUCT: &[u8; 16] = b"REPLICATED DISK ";
const REVISION: &[u8; 4] = b"0001";

/// The OUI 02-45-4b: its second bit makes it a local one.
const LOCAL_COMPANY: u128 = 0x02_454b;

const ISCSI: u8 = 0x50;
const BINARY: u8 = 0x01;
const ASCII: u8 = 0x02;
const UTF_8: u8 = 0x03;
const PIV: u8 = 0x80;
const OF_UNIT: u8 = 0x00;
const OF_PORT: u8 = 0x10;
const OF_TARGET: u8 = 0x20;
const T10_VENDOR: u8 = 0x01;
const NAA: u8 = 0x03;
const RELATIVE_PORT: u8 = 0x04;
const PORT_GROUP: u8 = 0x05;
const SCSI_NAME: u8 = 0x08;
const NAME_LEN_MAX: usize = 251;

const HEADSUP: u8 = 0x04;
const ORDSUP: u8 = 0x02;
const SIMPSUP: u8 = 0x01;
const V_SUP: u8 = 0x01;
const LUICLR: u8 = 0x01;

const WSNZ: u8 = 0x01;
const NOT_ROTATING: u16 = 1;
const LBPU: u8 = 0x80;
const LBPWS: u8 = 0x40;
const LBPWS10: u8 = 0x20;
const LBPRZ: u8 = 0x04;
const FULLY: u8 = 0;
const THIN: u8 = 2;
const UGAVALID: u32 = 1 << 31;
/// What the backing store handles best, in bytes.
pub(super) const PHYSICAL_LEN: u32 = 4096;
