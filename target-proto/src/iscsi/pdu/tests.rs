//! The PDUs read back what they wrote, and nothing that comes makes the decoder fall over.

use std::io::IoSlice;

use block::Payload;
use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::*;

const SEGMENT_MAX: u32 = 8192;
const DIGESTS: [Digests; 4] = [
    Digests { header: false, data: false },
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests { header: true, data: true },
];

/// Everything that waits in an output, sent in writes of at most `write_max` bytes.
fn sent(output: &mut Output, write_max: usize) -> BytesMut {
    let mut all = BytesMut::new();
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); 3];
        let filled = output.slices(&mut slices);
        let bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
        let len = bytes.len().min(write_max);
        all.put_slice(&bytes[..len]);
        output.advance(len);
    }
    all
}

fn encode(pdu: &Pdu, digests: Digests) -> BytesMut {
    let mut output = Output::new();
    output.set_digests(digests);
    pdu.write(&mut output);
    sent(&mut output, usize::MAX)
}

fn decoder(header: &Header, digests: Digests) -> Decoder {
    let sender = if header.opcode() < 0x20 { Sender::Initiator } else { Sender::Target };
    Decoder::new(sender, SEGMENT_MAX, digests)
}

/// A PDU on the wire, without digests.
fn wire(header: [u8; BHS_LEN], data: &[u8]) -> BytesMut {
    let mut header = Header(header);
    let len = u32::try_from(data.len()).unwrap().to_be_bytes();
    header.put(5, [len[1], len[2], len[3]]);
    let mut bytes = BytesMut::from(&header.0[..]);
    bytes.put_slice(&vec![0; header.ahs_len()]);
    bytes.put_slice(data);
    bytes.put_bytes(0, data.len().next_multiple_of(4) - data.len());
    bytes
}

/// RFC 7143 appendix B.4: the READ(10) command and its header digest, byte by byte.
#[test]
fn a_read_command_is_the_standards_bytes() {
    let mut cdb = [0; 16];
    cdb[0] = 0x28;
    cdb[8] = 2;
    let command = Pdu::ScsiCommand(ScsiCommand {
        immediate: false,
        last: true,
        direction: Direction::Read,
        attribute: TaskAttribute::Untagged,
        lun: 0,
        task: 0x1400_0000,
        expected_len: 1024,
        cmd_sn: 0x14,
        exp_stat_sn: 0x18,
        cdb,
        bidirectional_len: None,
        data: Bytes::new(),
    });
    let golden = [
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0,
        0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x56, 0x3a, 0x96, 0xd9,
    ];
    let digests = Digests { header: true, data: true };
    assert_eq!(encode(&command, digests)[..], golden);
    let mut buffer = BytesMut::from(&golden[..]);
    let received = Decoder::new(Sender::Initiator, 512, digests).next(&mut buffer).unwrap().unwrap();
    assert_eq!((received.pdu, buffer.len()), (command, 0));
}

/// RFC 7143 appendix B.4: the digests of 32 zeros, ones, and counted bytes, as a data segment carries them.
#[test]
fn data_digests_are_the_standards() {
    let counted: Vec<u8> = (0..32).collect();
    for (data, digest) in [
        (vec![0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (vec![0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (counted, [0x4e, 0x79, 0xdd, 0x46]),
    ] {
        let ping = NopOut {
            immediate: true,
            lun: 0,
            task: Some(1),
            transfer: None,
            cmd_sn: 1,
            exp_stat_sn: 1,
            data: data.into(),
        };
        let bytes = encode(&Pdu::NopOut(ping), Digests { header: false, data: true });
        assert_eq!(bytes[BHS_LEN + 32..], digest);
    }
}

proptest! {
    /// Whatever a PDU of either side says, its bytes read back as the same PDU, with each choice of digests.
    #[test]
    fn every_pdu_reads_back(
        header in proptest::array::uniform32(any::<u8>()),
        rest in proptest::array::uniform16(any::<u8>()),
        opcode in prop::sample::select(&OPCODES[..]),
        data in proptest::collection::vec(any::<u8>(), 0..600),
        digests in 0..DIGESTS.len(),
    ) {
        let mut bytes = [0; BHS_LEN];
        bytes[..32].copy_from_slice(&header);
        bytes[32..].copy_from_slice(&rest);
        bytes[0] = opcode | header[0] & IMMEDIATE;
        bytes[4] = 0;
        let mut buffer = wire(bytes, &data);
        let header = Header(bytes);
        match decoder(&header, Digests::default()).next(&mut buffer) {
            Ok(received) => {
                let pdu = received.expect("the PDU is whole").pdu;
                let mut again = encode(&pdu, DIGESTS[digests]);
                let read = decoder(&header, DIGESTS[digests]).next(&mut again).unwrap().unwrap();
                prop_assert_eq!(read.pdu, pdu);
                prop_assert!(again.is_empty());
            }
            Err(error) => prop_assert!(matches!(error, DecodeError::Field { .. }), "{:?}", error),
        }
        prop_assert!(buffer.is_empty());
    }
}

/// Commands with additional header segments: a bidirectional length survives, an extended CDB is passed over, and
/// what does not fit is an invalid field (RFC 7143 11.2.2).
#[test]
fn additional_header_segments_are_bounded() {
    let read = |ahs: &[u8]| {
        let mut bytes = [0; BHS_LEN];
        bytes[..2].copy_from_slice(&[ScsiCommand::OPCODE, 0x80]);
        bytes[4] = u8::try_from(ahs.len() / 4).unwrap();
        let mut buffer = BytesMut::from(&bytes[..]);
        buffer.put_slice(ahs);
        let header = Header(bytes);
        decoder(&header, Digests::default()).next(&mut buffer).map(|received| received.unwrap().pdu)
    };
    for (ahs, expected) in [
        (&[0, 5, 2, 0, 0, 0, 2, 1][..], Some(0x201)),
        (&[0, 9, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8], None),
        (&[0, 5, 1, 0, 9, 9, 9, 9, 0, 5, 2, 0, 0, 0, 0, 7], Some(7)),
    ] {
        match read(ahs) {
            Ok(Pdu::ScsiCommand(command)) => assert_eq!(command.bidirectional_len, expected, "{ahs:?}"),
            other => panic!("{ahs:?}: {other:?}"),
        }
    }
    for ahs in [&[0, 5, 3, 0, 0, 0, 0, 0][..], &[0, 4, 2, 0, 0, 0, 0, 0], &[0xff, 0xff, 1, 0], &[0, 5, 2, 0]]
    {
        assert!(matches!(read(ahs), Err(DecodeError::Field { at: 4, .. })), "{ahs:?}");
    }
    for words in 0..=255_usize {
        // Segments of zeros: each is a reserved type, whatever their number.
        let result = read(&vec![0; words * 4]);
        assert_eq!(result.is_ok(), words == 0);
    }
}

/// target.md recipe 32: a length beyond what we declared ends the connection on the header alone.
#[test]
fn a_segment_beyond_the_limit_is_not_waited_for() {
    let mut buffer = BytesMut::zeroed(BHS_LEN);
    buffer[5..8].copy_from_slice(&[0, 0x20, 1]);
    let mut decoder = Decoder::new(Sender::Initiator, SEGMENT_MAX, Digests::default());
    let error = decoder.next(&mut buffer).unwrap_err();
    assert_eq!(error, DecodeError::Length { data_len: 8193, data_segment_max: 8192 });
    assert_eq!(error.reject(), None);
    buffer[5..8].copy_from_slice(&[0xff; 3]);
    assert!(decoder.next(&mut buffer).is_err());
    buffer[5..8].copy_from_slice(&[0, 0x20, 0]);
    assert_eq!(decoder.next(&mut buffer), Ok(None));
}

/// target.md recipe 25: an opcode that nobody has, or that only a target sends, can be rejected.
#[test]
fn foreign_opcodes_are_rejected() {
    for opcode in [0x07, 0x1c, 0x1f, 0x20, 0x31, 0x3f] {
        let mut bytes = [0; BHS_LEN];
        bytes[0] = opcode;
        let mut buffer = wire(bytes, b"data");
        let mut decoder = Decoder::new(Sender::Initiator, SEGMENT_MAX, Digests::default());
        let error = decoder.next(&mut buffer).unwrap_err();
        assert_eq!(error.reject().map(|(reason, _)| reason), Some(RejectReason::NotSupported));
        assert!(buffer.is_empty(), "opcode {opcode:#x} is taken from the buffer");
    }
}

fn samples() -> Vec<Pdu> {
    let data = Bytes::from_static(b"eleven byte");
    let command = ScsiCommand {
        immediate: false,
        last: false,
        direction: Direction::Write,
        attribute: TaskAttribute::Simple,
        lun: 1 << 48,
        task: 7,
        expected_len: 512,
        cmd_sn: 3,
        exp_stat_sn: 4,
        cdb: [0x2a; 16],
        bidirectional_len: None,
        data: data.clone(),
    };
    let out = DataOut {
        last: true,
        lun: 1 << 48,
        task: 7,
        transfer: Some(9),
        exp_stat_sn: 4,
        data_sn: 0,
        offset: 11,
        data: data.clone(),
    };
    let both = ScsiCommand { direction: Direction::Both, bidirectional_len: Some(99), ..command.clone() };
    vec![Pdu::ScsiCommand(command), Pdu::DataOut(out), Pdu::ScsiCommand(both)]
}

/// P13: cut anywhere, a PDU is waited for; whole, it is read, with each choice of digests.
#[test]
fn every_truncation_waits() {
    for digests in DIGESTS {
        for pdu in samples() {
            let whole = encode(&pdu, digests);
            for cut in 0..whole.len() {
                let mut decoder = Decoder::new(Sender::Initiator, SEGMENT_MAX, digests);
                let mut buffer = BytesMut::from(&whole[..cut]);
                assert_eq!(decoder.next(&mut buffer), Ok(None), "cut at {cut}");
                assert_eq!(buffer.len(), cut);
                buffer.put_slice(&whole[cut..]);
                assert_eq!(decoder.next(&mut buffer).unwrap().unwrap().pdu, pdu);
            }
        }
    }
}

/// RFC 7143 7.8: with digests, no flipped bit is taken for data; it is the digest that finds it, or the length.
#[test]
fn every_flipped_bit_is_found() {
    let digests = Digests { header: true, data: true };
    for pdu in samples() {
        let whole = encode(&pdu, digests);
        for bit in 0..whole.len() * 8 {
            let mut buffer = whole.clone();
            buffer[bit / 8] ^= 1 << (bit % 8);
            match Decoder::new(Sender::Initiator, SEGMENT_MAX, digests).next(&mut buffer) {
                Err(_) | Ok(None) => {}
                Ok(Some(received)) => panic!("bit {bit} was taken: {received:?}"),
            }
        }
    }
}

/// P13: three hundred thousand mutated streams neither panic the decoder nor make it give more bytes than came.
#[test]
fn mutations_are_survived() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 16).unwrap()
    };
    let streams: Vec<BytesMut> = DIGESTS
        .iter()
        .map(|digests| samples().iter().flat_map(|pdu| encode(pdu, *digests)).collect())
        .collect();
    for _ in 0..300_000 {
        let which = next() % streams.len();
        let mut stream = streams[which].clone();
        for _ in 0..=next() % 4 {
            let at = next() % stream.len();
            stream[at] = u8::try_from(next() & 0xff).unwrap();
        }
        let mut decoder = Decoder::new(Sender::Initiator, SEGMENT_MAX, DIGESTS[which]);
        let mut left = stream.len();
        loop {
            match decoder.next(&mut stream) {
                Ok(None) => break,
                Err(error) if error.reject().is_none() => break,
                Ok(Some(_)) | Err(_) => {}
            }
            assert!(stream.len() + BHS_LEN <= left);
            left = stream.len();
        }
    }
}

/// What is queued goes out once and in order, however small the writes, and payloads are not copied on the way.
#[test]
fn output_survives_short_writes() {
    let payload = Payload::from(vec![7; 4096]);
    for write_max in [1, 7, 48, 100, 5000] {
        let mut output = Output::new();
        let mut expected = BytesMut::new();
        for data_sn in 0..20 {
            let data = if data_sn % 3 == 0 { payload.clone() } else { payload.slice(0, 13) };
            let pdu = Pdu::DataIn(DataIn {
                last: true,
                status: None,
                lun: 0,
                task: 1,
                exp_cmd_sn: 1,
                max_cmd_sn: 1,
                data_sn,
                offset: 0,
                data,
            });
            expected.put_slice(&encode(&pdu, Digests::default()));
            pdu.write(&mut output);
        }
        assert_eq!(output.len(), expected.len());
        assert_eq!(sent(&mut output, write_max), expected, "writes of {write_max} bytes");
    }
    let mut output = Output::new();
    let header = Header::new(DataIn::OPCODE);
    output.push(header, &payload);
    let mut slices = [IoSlice::new(&[]); 4];
    let filled = output.slices(&mut slices);
    assert_eq!(filled, 2);
    assert!(std::ptr::eq(slices[1].as_ptr(), payload.parts()[0].as_ptr()));
}

const OPCODES: [u8; 18] = [
    NopOut::OPCODE,
    ScsiCommand::OPCODE,
    ManagementRequest::OPCODE,
    LoginRequest::OPCODE,
    TextRequest::OPCODE,
    DataOut::OPCODE,
    LogoutRequest::OPCODE,
    Snack::OPCODE,
    NopIn::OPCODE,
    ScsiResponse::OPCODE,
    ManagementResponse::OPCODE,
    LoginResponse::OPCODE,
    TextResponse::OPCODE,
    DataIn::OPCODE,
    LogoutResponse::OPCODE,
    ReadyToTransfer::OPCODE,
    AsyncMessage::OPCODE,
    Reject::OPCODE,
];
