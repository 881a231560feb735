//! Sense data: why a command ended as it did (SPC-4 4.5), in fixed and in descriptor format.

use bytes::{BufMut, Bytes, BytesMut};

use super::length::len8;

/// The coarse reason (SPC-4 table 48).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SenseKey {
    /// Nothing is wrong.
    NoSense = 0x0,
    /// The logical unit can not be reached.
    NotReady = 0x2,
    /// The medium has a flaw.
    MediumError = 0x3,
    /// The device itself failed.
    HardwareError = 0x4,
    /// The command or its parameters are wrong.
    IllegalRequest = 0x5,
    /// Something happened to the logical unit that the initiator has not been told.
    UnitAttention = 0x6,
    /// The medium may not be written.
    DataProtect = 0x7,
    /// EXTENDED COPY could not copy a segment.
    CopyAborted = 0xa,
    /// The device ended the command; the initiator may send it again.
    AbortedCommand = 0xb,
    /// The compared data differs from the medium's.
    Miscompare = 0xe,
}

/// The additional sense code and its qualifier (SPC-4 annex F.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Additional {
    /// ADDITIONAL SENSE CODE.
    pub code: u8,
    /// ADDITIONAL SENSE CODE QUALIFIER.
    pub qualifier: u8,
}

macro_rules! additional {
    ($($name:ident = $code:literal / $qualifier:literal, $text:literal;)*) => {
        impl Additional {
            $(
                #[doc = $text]
                pub const $name: Self = Self { code: $code, qualifier: $qualifier };
            )*
        }
    };
}

additional! {
    NONE = 0x00 / 0x00, "NO ADDITIONAL SENSE INFORMATION";
    OPERATION_IN_PROGRESS = 0x00 / 0x16, "OPERATION IN PROGRESS";
    TRANSITION = 0x04 / 0x0a, "LOGICAL UNIT NOT ACCESSIBLE, ASYMMETRIC ACCESS STATE TRANSITION";
    STANDBY = 0x04 / 0x0b, "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE";
    UNAVAILABLE = 0x04 / 0x0c, "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE";
    UNREACHABLE_COPY_TARGET = 0x08 / 0x04, "UNREACHABLE COPY TARGET";
    WRITE_ERROR = 0x0c / 0x00, "WRITE ERROR";
    THIRD_PARTY_DEVICE_FAILURE = 0x0d / 0x01, "THIRD PARTY DEVICE FAILURE";
    COPY_TARGET_NOT_REACHABLE = 0x0d / 0x02, "COPY TARGET DEVICE NOT REACHABLE";
    INCORRECT_COPY_TARGET_TYPE = 0x0d / 0x03, "INCORRECT COPY TARGET DEVICE TYPE";
    INVALID_INFORMATION_UNIT_FIELD = 0x0e / 0x03, "INVALID FIELD IN COMMAND INFORMATION UNIT";
    READ_ERROR = 0x11 / 0x00, "UNRECOVERED READ ERROR";
    PARAMETER_LIST_LENGTH = 0x1a / 0x00, "PARAMETER LIST LENGTH ERROR";
    DEFECT_LIST_NOT_FOUND = 0x1c / 0x00, "DEFECT LIST NOT FOUND";
    MISCOMPARE = 0x1d / 0x00, "MISCOMPARE DURING VERIFY OPERATION";
    INVALID_OPERATION_CODE = 0x20 / 0x00, "INVALID COMMAND OPERATION CODE";
    LBA_OUT_OF_RANGE = 0x21 / 0x00, "LOGICAL BLOCK ADDRESS OUT OF RANGE";
    INVALID_FIELD_IN_CDB = 0x24 / 0x00, "INVALID FIELD IN CDB";
    UNSUPPORTED_LUN = 0x25 / 0x00, "LOGICAL UNIT NOT SUPPORTED";
    INVALID_FIELD_IN_PARAMETERS = 0x26 / 0x00, "INVALID FIELD IN PARAMETER LIST";
    INVALID_RELEASE = 0x26 / 0x04, "INVALID RELEASE OF PERSISTENT RESERVATION";
    TOO_MANY_TARGET_DESCRIPTORS = 0x26 / 0x06, "TOO MANY TARGET DESCRIPTORS";
    UNSUPPORTED_TARGET_DESCRIPTOR = 0x26 / 0x07, "UNSUPPORTED TARGET DESCRIPTOR TYPE CODE";
    TOO_MANY_SEGMENT_DESCRIPTORS = 0x26 / 0x08, "TOO MANY SEGMENT DESCRIPTORS";
    UNSUPPORTED_SEGMENT_DESCRIPTOR = 0x26 / 0x09, "UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE";
    INLINE_DATA_LENGTH_EXCEEDED = 0x26 / 0x0b, "INLINE DATA LENGTH EXCEEDED";
    INVALID_COPY_OPERATION = 0x26 / 0x0c, "INVALID OPERATION FOR COPY SOURCE OR DESTINATION";
    WRITE_PROTECTED = 0x27 / 0x00, "WRITE PROTECTED";
    SOFTWARE_WRITE_PROTECTED = 0x27 / 0x02, "LOGICAL UNIT SOFTWARE WRITE PROTECTED";
    NO_SPACE = 0x27 / 0x07, "SPACE ALLOCATION FAILED WRITE PROTECT";
    POWER_ON_OR_RESET = 0x29 / 0x00, "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED";
    COMMANDS_CLEARED = 0x2f / 0x00, "COMMANDS CLEARED BY ANOTHER INITIATOR";
    DEVICE_RESET = 0x29 / 0x03, "BUS DEVICE RESET FUNCTION OCCURRED";
    NEXUS_LOSS = 0x29 / 0x07, "`I_T` NEXUS LOSS OCCURRED";
    MODE_PARAMETERS_CHANGED = 0x2a / 0x01, "MODE PARAMETERS CHANGED";
    RESERVATIONS_PREEMPTED = 0x2a / 0x03, "RESERVATIONS PREEMPTED";
    RESERVATIONS_RELEASED = 0x2a / 0x04, "RESERVATIONS RELEASED";
    REGISTRATIONS_PREEMPTED = 0x2a / 0x05, "REGISTRATIONS PREEMPTED";
    ACCESS_STATE_CHANGED = 0x2a / 0x06, "ASYMMETRIC ACCESS STATE CHANGED";
    CAPACITY_CHANGED = 0x2a / 0x09, "CAPACITY DATA HAS CHANGED";
    SEQUENCE_ERROR = 0x2c / 0x00, "COMMAND SEQUENCE ERROR";
    SAVING_NOT_SUPPORTED = 0x39 / 0x00, "SAVING PARAMETERS NOT SUPPORTED";
    LUNS_CHANGED = 0x3f / 0x0e, "REPORTED LUNS DATA HAS CHANGED";
    INTERNAL_FAILURE = 0x44 / 0x00, "INTERNAL TARGET FAILURE";
    REMOVAL_PREVENTED = 0x53 / 0x02, "MEDIUM REMOVAL PREVENTED";
    INSUFFICIENT_RESOURCES = 0x55 / 0x03, "INSUFFICIENT RESOURCES";
    REGISTRATION_RESOURCES = 0x55 / 0x04, "INSUFFICIENT REGISTRATION RESOURCES";
}

/// Which byte, and perhaps which bit, is wrong (SPC-4 4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// In the CDB, or else in the parameter list.
    pub in_cdb: bool,
    /// The first byte of the field.
    pub byte: u16,
    /// Its highest bit, where the field is a part of a byte.
    pub bit: Option<u8>,
}

/// The format sense data is sent in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SenseFormat {
    /// 18 bytes with fixed places (SPC-4 4.5.3).
    #[default]
    Fixed,
    /// A header and descriptors (SPC-4 4.5.2).
    Descriptor,
}

/// What CHECK CONDITION says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// The coarse reason.
    pub key: SenseKey,
    /// The fine reason.
    pub additional: Additional,
    /// INFORMATION: the offset of a miscompare in bytes, or the address of a block with a flaw.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION: the segment that [`SenseKey::CopyAborted`] is about, counted from 0.
    pub segment: Option<u16>,
    /// The field that is wrong, with [`SenseKey::IllegalRequest`].
    pub field: Option<Field>,
}

impl Sense {
    /// Sense data of key and code alone.
    #[must_use]
    pub const fn new(key: SenseKey, additional: Additional) -> Self {
        Self { key, additional, information: None, segment: None, field: None }
    }

    /// ILLEGAL REQUEST for this reason.
    #[must_use]
    pub const fn illegal(additional: Additional) -> Self {
        Self::new(SenseKey::IllegalRequest, additional)
    }

    /// NOT READY for this reason.
    #[must_use]
    pub const fn not_ready(additional: Additional) -> Self {
        Self::new(SenseKey::NotReady, additional)
    }

    /// INVALID FIELD IN CDB: the whole of this byte.
    #[must_use]
    pub const fn cdb_byte(byte: u16) -> Self {
        Self::in_field(Additional::INVALID_FIELD_IN_CDB, Field { in_cdb: true, byte, bit: None })
    }

    /// INVALID FIELD IN CDB: the field of this byte that begins with this bit.
    #[must_use]
    pub const fn cdb_bit(byte: u16, bit: u8) -> Self {
        Self::in_field(Additional::INVALID_FIELD_IN_CDB, Field { in_cdb: true, byte, bit: Some(bit) })
    }

    /// INVALID FIELD IN PARAMETER LIST: the whole of this byte.
    #[must_use]
    pub const fn parameter_byte(byte: u16) -> Self {
        Self::in_field(Additional::INVALID_FIELD_IN_PARAMETERS, Field { in_cdb: false, byte, bit: None })
    }

    /// INVALID FIELD IN PARAMETER LIST: the field of this byte that begins with this bit.
    #[must_use]
    pub const fn parameter_bit(byte: u16, bit: u8) -> Self {
        Self::in_field(Additional::INVALID_FIELD_IN_PARAMETERS, Field { in_cdb: false, byte, bit: Some(bit) })
    }

    /// The same with INFORMATION.
    #[must_use]
    pub const fn with_information(self, information: u64) -> Self {
        Self { information: Some(information), ..self }
    }

    /// The same with the segment of EXTENDED COPY that it is about.
    #[must_use]
    pub const fn with_segment(self, segment: u16) -> Self {
        Self { segment: Some(segment), ..self }
    }

    /// The bytes that the initiator is sent.
    #[must_use]
    pub fn encode(&self, format: SenseFormat) -> Bytes {
        match format {
            SenseFormat::Fixed => self.encode_fixed(),
            SenseFormat::Descriptor => self.encode_descriptors(),
        }
    }

    const fn in_field(additional: Additional, field: Field) -> Self {
        Self { field: Some(field), ..Self::illegal(additional) }
    }

    /// INFORMATION has 32 bits here: a value that needs more is left out (SPC-4 4.5.3).
    fn encode_fixed(&self) -> Bytes {
        let information = self.information.and_then(|information| u32::try_from(information).ok());
        let mut bytes = BytesMut::with_capacity(FIXED_LEN);
        bytes.put_u8(FIXED_CURRENT | if information.is_some() { VALID } else { 0 });
        bytes.put_u8(0);
        bytes.put_u8(self.key as u8);
        bytes.put_u32(information.unwrap_or(0));
        bytes.put_u8(FIXED_ADDITIONAL_LEN);
        bytes.put_u32(self.segment.unwrap_or(0).into());
        bytes.put_u8(self.additional.code);
        bytes.put_u8(self.additional.qualifier);
        bytes.put_u8(0);
        bytes.put_slice(&self.field.map_or([0; 3], Field::encode));
        bytes.freeze()
    }

    fn encode_descriptors(&self) -> Bytes {
        let mut descriptors = BytesMut::new();
        if let Some(information) = self.information {
            descriptors.put_slice(&[0x00, 0x0a, VALID, 0]);
            descriptors.put_u64(information);
        }
        if let Some(segment) = self.segment {
            descriptors.put_slice(&[0x01, 0x0a, 0, 0]);
            descriptors.put_u64(segment.into());
        }
        if let Some(field) = self.field {
            descriptors.put_slice(&[0x02, 0x06, 0, 0]);
            descriptors.put_slice(&field.encode());
            descriptors.put_u8(0);
        }
        let mut bytes = BytesMut::with_capacity(8 + descriptors.len());
        bytes.put_slice(&[
            DESCRIPTOR_CURRENT,
            self.key as u8,
            self.additional.code,
            self.additional.qualifier,
        ]);
        bytes.put_slice(&[0, 0, 0, len8(descriptors.len())]);
        bytes.put_slice(&descriptors);
        bytes.freeze()
    }
}

impl Field {
    /// The sense key specific bytes (SPC-4 table 42).
    fn encode(self) -> [u8; 3] {
        let [high, low] = self.byte.to_be_bytes();
        let bit = self.bit.map_or(0, |bit| 0x08 | bit & 7);
        [0x80 | if self.in_cdb { 0x40 } else { 0 } | bit, high, low]
    }
}

const FIXED_LEN: usize = 18;
const FIXED_ADDITIONAL_LEN: u8 = 10;
const FIXED_CURRENT: u8 = 0x70;
const DESCRIPTOR_CURRENT: u8 = 0x72;
const VALID: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;

    /// SPC-4 4.5.3: the fixed format, byte by byte.
    #[test]
    fn fixed_format() {
        let sense = Sense::cdb_bit(1, 7).with_information(0x0102_0304);
        let bytes = sense.encode(SenseFormat::Fixed);
        assert_eq!(*bytes, [0xf0, 0, 5, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcf, 0, 1]);
    }

    /// SPC-4 4.5.3: what does not fit in four bytes is not sent, rather than cut.
    #[test]
    fn fixed_format_leaves_out_a_long_information() {
        let sense = Sense::new(SenseKey::MediumError, Additional::READ_ERROR).with_information(1 << 32);
        let bytes = sense.encode(SenseFormat::Fixed);
        assert_eq!(*bytes, [0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]);
    }

    /// SPC-4 6.4.4.2: the segment stands in the last two bytes of COMMAND-SPECIFIC INFORMATION.
    #[test]
    fn the_segment_that_failed() {
        let sense =
            Sense::new(SenseKey::CopyAborted, Additional::THIRD_PARTY_DEVICE_FAILURE).with_segment(258);
        let bytes = sense.encode(SenseFormat::Fixed);
        assert_eq!(*bytes, [0x70, 0, 10, 0, 0, 0, 0, 10, 0, 0, 1, 2, 0x0d, 1, 0, 0, 0, 0]);
        let bytes = sense.encode(SenseFormat::Descriptor);
        assert_eq!(bytes[..8], [0x72, 10, 0x0d, 1, 0, 0, 0, 12]);
        assert_eq!(bytes[8..], [1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    /// SPC-4 4.5.2: header, information descriptor, sense key specific descriptor.
    #[test]
    fn descriptor_format() {
        let sense = Sense::parameter_byte(0x0203).with_information(1 << 32);
        let bytes = sense.encode(SenseFormat::Descriptor);
        assert_eq!(bytes[..8], [0x72, 5, 0x26, 0, 0, 0, 0, 20]);
        assert_eq!(bytes[8..20], [0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(bytes[20..], [2, 6, 0, 0, 0x80, 2, 3, 0]);
    }
}
