//! Mode pages: what an initiator can ask and set of a logical unit (SPC-4 7.5, SBC-3 6.5).
//!
//! Three bits can be changed: `D_SENSE` and SWP of the control page and WCE of the caching page. Nothing is saved.

use bytes::{BufMut as _, BytesMut};

use super::length::{len8, len16};
use super::operation::Descriptors;
use super::sense::{Additional, Sense};
use super::unit::Unit;

/// What MODE SELECT can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    /// `D_SENSE`: sense data goes out in descriptor format.
    pub(super) descriptor_sense: bool,
    /// SWP: writes are refused.
    pub(super) write_protect: bool,
    /// WCE: a write may complete before it is stable.
    pub(super) write_cache: bool,
}

/// Which values of a page MODE SENSE returns (PC, SPC-4 table 149).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageControl {
    Current,
    Changeable,
    Default,
}

impl Default for Mode {
    fn default() -> Self {
        Self { descriptor_sense: false, write_protect: false, write_cache: true }
    }
}

impl Mode {
    /// All that can be set: the mask that MODE SENSE returns as changeable.
    const CHANGEABLE: Self = Self { descriptor_sense: true, write_protect: true, write_cache: true };

    /// The page with this code, header and all, and the same with everything changeable set and unset.
    fn page(self, (code, subpage): (u8, u8)) -> Option<Page> {
        let (bytes, len): (&[(usize, u8)], u8) = match (code, subpage) {
            (0x01 | 0x1c, 0) => (&[], 12),
            (0x02, 0) => (&[], 16),
            (0x08, 0) => (&[(2, flag(self.write_cache, WCE))], 20),
            (0x0a, 0) => (
                &[
                    (2, GLTSD | flag(self.descriptor_sense, D_SENSE)),
                    (3, UNRESTRICTED_REORDERING),
                    (4, flag(self.write_protect, SWP)),
                    (8, 0xff),
                    (9, 0xff),
                ],
                12,
            ),
            (0x0a, 1) => (&[(4, IALUAE)], 32),
            _ => return None,
        };
        let mut page = Page { bytes: [0; PAGE_LEN_MAX], len: len.into() };
        if subpage == 0 {
            page.bytes[..2].copy_from_slice(&[code, len - 2]);
        } else {
            page.bytes[..4].copy_from_slice(&[SUBPAGE_FORMAT | code, subpage, 0, len - 4]);
        }
        for (at, value) in bytes {
            page.bytes[*at] = *value;
        }
        Some(page)
    }

    /// The values of a page that `control` asks for.
    fn values(self, page: (u8, u8), control: PageControl) -> Option<Page> {
        match control {
            PageControl::Current => self.page(page),
            PageControl::Default => Self::default().page(page),
            PageControl::Changeable => Self::mask(page),
        }
    }

    /// The bits of a page that can be changed, behind its header.
    fn mask(page: (u8, u8)) -> Option<Page> {
        let none = Self { descriptor_sense: false, write_protect: false, write_cache: false }.page(page)?;
        let mut mask = Self::CHANGEABLE.page(page)?;
        let header_len = if page.1 == 0 { 2 } else { 4 };
        for at in header_len..mask.len {
            mask.bytes[at] ^= none.bytes[at];
        }
        Some(mask)
    }
}

struct Page {
    bytes: [u8; PAGE_LEN_MAX],
    len: usize,
}

impl Page {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

const fn flag(set: bool, bits: u8) -> u8 {
    if set { bits } else { 0 }
}

/// What MODE SENSE returns.
pub(super) fn sense(
    unit: &Unit,
    long: bool,
    descriptors: Descriptors,
    control: PageControl,
    (page, subpage): (u8, u8),
) -> Result<BytesMut, Sense> {
    let mut body = BytesMut::new();
    put_descriptor(&mut body, unit, descriptors);
    let descriptors_len = body.len();
    let mut found = false;
    for code in PAGES {
        let wanted = (page == ALL || page == code.0) && (subpage == ALL_SUBPAGES || subpage == code.1);
        if let Some(values) = unit.mode.values(code, control).filter(|_| wanted) {
            body.put_slice(values.as_bytes());
            found = true;
        }
    }
    if !found {
        return Err(if page == ALL || PAGES.iter().any(|code| code.0 == page) {
            Sense::cdb_byte(3)
        } else {
            Sense::cdb_bit(2, 5)
        });
    }
    let device = DPO_FUA | flag(unit.write_protected(), WRITE_PROTECTED);
    let mut data = BytesMut::with_capacity(LONG_HEADER_LEN + body.len());
    if long {
        data.put_u16(len16(LONG_HEADER_LEN - 2 + body.len()));
        data.put_slice(&[0, device, flag(descriptors == Descriptors::Long, LONG_LBA), 0]);
        data.put_u16(len16(descriptors_len));
    } else {
        data.put_u8(len8(SHORT_HEADER_LEN - 1 + body.len()));
        data.put_slice(&[0, device, len8(descriptors_len)]);
    }
    data.put_slice(&body);
    Ok(data)
}

fn put_descriptor(body: &mut BytesMut, unit: &Unit, descriptors: Descriptors) {
    match descriptors {
        Descriptors::None => {}
        Descriptors::Short => {
            body.put_u32(u32::try_from(unit.blocks()).unwrap_or(u32::MAX));
            body.put_u32(unit.block_len());
        }
        Descriptors::Long => {
            body.put_u64(unit.blocks());
            body.put_u32(0);
            body.put_u32(unit.block_len());
        }
    }
}

/// What a unit is set to after a parameter list of MODE SELECT. All of the list is valid or nothing of it is used.
pub(super) fn select(unit: &Unit, long: bool, list: &[u8]) -> Result<Mode, Sense> {
    if list.is_empty() {
        return Ok(unit.mode);
    }
    let header_len = if long { LONG_HEADER_LEN } else { SHORT_HEADER_LEN };
    let header = list.get(..header_len).ok_or(LIST_LENGTH)?;
    let long_lba = long && header[4] & LONG_LBA != 0;
    let descriptors_len =
        if long { usize::from(u16::from_be_bytes([header[6], header[7]])) } else { usize::from(header[3]) };
    let descriptors = list.get(header_len..header_len + descriptors_len).ok_or(LIST_LENGTH)?;
    check_descriptor(unit, long_lba, descriptors, header_len)?;
    let mut mode = unit.mode;
    let mut at = header_len + descriptors_len;
    while at < list.len() {
        at += select_page(&mut mode, list, at)?;
    }
    Ok(mode)
}

/// Descriptors tell what is so: they change nothing.
fn check_descriptor(unit: &Unit, long_lba: bool, descriptor: &[u8], at: usize) -> Result<(), Sense> {
    if descriptor.is_empty() {
        return Ok(());
    }
    let mut expected = BytesMut::new();
    put_descriptor(&mut expected, unit, if long_lba { Descriptors::Long } else { Descriptors::Short });
    if descriptor.len() != expected.len() {
        return Err(Sense::parameter_byte(if at == LONG_HEADER_LEN { 6 } else { 3 }));
    }
    let blocks_len = if long_lba { 8 } else { 4 };
    let (blocks, block_len) = descriptor.split_at(blocks_len);
    let unchanged = blocks.iter().all(|byte| *byte == 0) || *blocks == expected[..blocks_len];
    if !unchanged {
        return Err(Sense::parameter_byte(len16(at)));
    }
    // The first byte behind the number of blocks, of the short form, is reserved or density.
    if block_len[1..] != expected[blocks_len + 1..] {
        return Err(Sense::parameter_byte(len16(at + blocks_len + 1)));
    }
    Ok(())
}

/// Takes the page at `at` over and returns its length.
fn select_page(mode: &mut Mode, list: &[u8], at: usize) -> Result<usize, Sense> {
    let field = |offset: usize| Sense::parameter_byte(len16(at + offset));
    let [first, second, ..] = list[at..] else { return Err(LIST_LENGTH) };
    let code = (first & 0x3f, if first & SUBPAGE_FORMAT == 0 { 0 } else { second });
    let current = mode.page(code).ok_or(field(0))?;
    let (header_len, len_at) = if code.1 == 0 { (2, 1) } else { (4, 3) };
    let given = list.get(at..at + current.len);
    let len_given = *list.get(at + len_at).ok_or(LIST_LENGTH)?;
    if (first & SUBPAGE_FORMAT == 0) != (code.1 == 0) || len_given != current.bytes[len_at] {
        return Err(field(len_at));
    }
    let given = given.ok_or(LIST_LENGTH)?;
    let mask = Mode::mask(code).ok_or(field(0))?;
    let fixed = given.iter().zip(current.as_bytes()).zip(mask.as_bytes()).skip(header_len);
    let mut changed = fixed.map(|((given, current), mask)| (given ^ current) & !mask);
    if let Some(offset) = changed.position(|bits| bits != 0) {
        return Err(field(header_len + offset));
    }
    match code {
        (0x08, 0) => mode.write_cache = given[2] & WCE != 0,
        (0x0a, 0) => {
            mode.descriptor_sense = given[2] & D_SENSE != 0;
            mode.write_protect = given[4] & SWP != 0;
        }
        _ => {}
    }
    Ok(current.len)
}

/// Read-write error recovery, disconnect-reconnect, caching, control, control extension, informational exceptions.
const PAGES: [(u8, u8); 6] = [(0x01, 0), (0x02, 0), (0x08, 0), (0x0a, 0), (0x0a, 1), (0x1c, 0)];
const ALL: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
const PAGE_LEN_MAX: usize = 32;
const SUBPAGE_FORMAT: u8 = 0x40;

const SHORT_HEADER_LEN: usize = 4;
const LONG_HEADER_LEN: usize = 8;
const WRITE_PROTECTED: u8 = 0x80;
const DPO_FUA: u8 = 0x10;
const LONG_LBA: u8 = 0x01;

const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const GLTSD: u8 = 0x02;
const UNRESTRICTED_REORDERING: u8 = 0x10;
const SWP: u8 = 0x08;
const IALUAE: u8 = 0x01;

const LIST_LENGTH: Sense = Sense::illegal(Additional::PARAMETER_LIST_LENGTH);
