//! What a unit tells of itself (SPC-4 6, 7), and MODE SELECT, which changes it.

use super::*;

fn page(world: &mut World, code: u8) -> Vec<u8> {
    good(&world.run(&[0x12, 1, code, 0x01, 0x00, 0]))
}

/// Every command that has an allocation length returns the same bytes, cut there, and never more.
#[test]
fn any_allocation_length() {
    let mut world = World::new();
    let long = |head: &[u8], len: u32, cdb_len: usize| {
        let mut cdb = head.to_vec();
        cdb.extend(len.to_be_bytes());
        cdb.resize(cdb_len, 0);
        cdb
    };
    let short = |head: &[u8], len: u32, cdb_len: usize| {
        let mut cdb = head.to_vec();
        cdb.extend((len as u16).to_be_bytes());
        cdb.resize(cdb_len, 0);
        cdb
    };
    let byte = |head: &[u8], len: u32| [head, &[len as u8, 0]].concat();
    let mut forms: Vec<Box<dyn Fn(u32) -> Vec<u8>>> = vec![
        Box::new(|len| short(&[0x12, 0, 0], len, 6)),
        Box::new(|len| byte(&[0x1a, 0, 0x3f, 0xff], len)),
        Box::new(|len| short(&[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0], len, 10)),
        Box::new(|len| byte(&[0x03, 0, 0, 0], len)),
        Box::new(|len| byte(&[0x03, 1, 0, 0], len)),
        Box::new(|len| long(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0], len, 16)),
        Box::new(|len| long(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0], len, 16)),
        Box::new(|len| long(&[0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0], len, 16)),
        Box::new(|len| long(&[0x84, 4, 0, 0, 0, 0, 0, 0, 0, 0], len, 16)),
        Box::new(|len| long(&[0xa0, 0, 0, 0, 0, 0], len, 12)),
        Box::new(|len| long(&[0xa3, 0x0a, 0, 0, 0, 0], len, 12)),
        Box::new(|len| long(&[0xa3, 0x2a, 0, 0, 0, 0], len, 12)),
        Box::new(|len| long(&[0xa3, 0x0c, 0x80, 0, 0, 0], len, 12)),
        Box::new(|len| long(&[0xa3, 0x0c, 0x81, 0x28, 0, 0], len, 12)),
        Box::new(|len| long(&[0xb7, 0x1d, 0, 0, 0, 0], len, 12)),
        Box::new(|len| short(&[0x37, 0, 0x1d, 0, 0, 0, 0], len, 10)),
        Box::new(|len| short(&[0x4d, 0, 0x40, 0, 0, 0, 0], len, 10)),
        Box::new(|len| short(&[0x4d, 0, 0x6f, 0, 0, 0, 0], len, 10)),
    ];
    for code in [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2] {
        forms.push(Box::new(move |len| short(&[0x12, 1, code], len, 6)));
    }
    for action in 0..4 {
        forms.push(Box::new(move |len| short(&[0x5e, action, 0, 0, 0, 0, 0], len, 10)));
    }
    for form in forms {
        let whole = good(&world.run(&form(255)));
        for len in 0..=255 {
            let part = good(&world.run(&form(len)));
            assert_eq!(part, whole[..whole.len().min(len as usize)], "{:x?}", form(len));
        }
    }
}

/// SPC-4 6.6.2: a disk, SPC-4, two-format sense, implicit asymmetric access, third-party copies, queues, and the standards it follows.
#[test]
fn standard_inquiry() {
    let mut world = World::new();
    let data = good(&world.run(&[0x12, 0, 0, 1, 4, 0]));
    assert_eq!(data.len(), usize::from(data[4]) + 5);
    assert_eq!(data[..8], [0, 0, 6, 0x12, 69, 0x18, 0x10, 0x02]);
    assert_eq!(data[8..36], *b"EVENKEELREPLICATED DISK 0001");
    assert_eq!(data[58..66], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60]);
    illegal(&world.run(&[0x12, 0, 1, 1, 0, 0]), Additional::INVALID_FIELD_IN_CDB);
    illegal(&world.run(&[0x12, 1, 0x85, 1, 0, 0]), Additional::INVALID_FIELD_IN_CDB);
}

/// SPC-4 7.8: every page that is listed is there, in order, and says its own length.
#[test]
fn vital_product_data() {
    let mut world = World::new();
    let pages = page(&mut world, 0)[4..].to_vec();
    assert!(pages.is_sorted());
    for code in pages {
        let data = page(&mut world, code);
        assert_eq!((data[0], data[1]), (0, code));
        assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4, "{code:#x}");
    }
    assert_eq!(page(&mut world, 0xb0)[3], 0x3c);
    assert_eq!(page(&mut world, 0xb1)[4..6], [0, 1]);
    assert_eq!(page(&mut world, 0xb2)[5..7], [0xe4, 2]);
}

/// The identity of a volume is the same on every node and for every port, and of no other volume.
#[test]
fn identity_is_the_volumes() {
    let pages = |node: u16, volume: u16| {
        let mut identity = identity();
        identity.port.group = PortGroup(node);
        identity.port.relative = RelativePort(node);
        let mut target = Target::new(identity, vec![unit(volume)]);
        [0x80, 0x83].map(|code| {
            let request = Request {
                nexus: ONE,
                lun: u64::from(volume) << 48,
                cdb: &[0x12, 1, code, 1, 0, 0],
                data_out: Payload::new(),
                data_out_expected: 0,
            };
            match target.start(request, &mut Vec::new()) {
                Step::Done(response) => good(&response),
                step => panic!("{step:?}"),
            }
        })
    };
    let ([serial, first], [other_serial, second]) = (pages(1, 0), pages(2, 0));
    assert_eq!(serial, other_serial);
    let of_unit = |page: &[u8]| page[4..4 + 20 + 4 + 40].to_vec();
    assert_eq!(of_unit(&first), of_unit(&second));
    assert_ne!(first, second, "relative port and group are the node's");
    let [third_serial, third] = pages(1, 1);
    assert_ne!((serial, of_unit(&first)), (third_serial, of_unit(&third)));
    assert_eq!(first[4..8], [0x01, 0x03, 0, 16], "binary NAA first, as Linux and ESXi want it");
    assert_eq!(first[8] >> 4, 6);
}

/// SBC-3 5.15, 5.16: the last block, and what thin provisioning means here.
#[test]
fn capacity() {
    let mut world = World::new();
    assert_eq!(good(&world.run(&[0x25; 1])), [0, 0, 0x0f, 0xff, 0, 0, 2, 0]);
    let long = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    let data = good(&world.run(&long));
    assert_eq!(data.len(), 32);
    assert_eq!(data[..16], [0, 0, 0, 0, 0, 0, 0x0f, 0xff, 0, 0, 2, 0, 0, 0, 0xc0, 0]);
    let mut world = World::with(UnitConfig { physical_block_size: BlockSize::B4096, ..unit(0) });
    assert_eq!(good(&world.run(&long))[13], 3);
    let mut effects = Vec::new();
    world.target.resize(VolumeNumber(0), 3 << 41, &mut effects);
    assert_eq!(world.attention(ONE), Some(Additional::CAPACITY_CHANGED));
    assert_eq!(good(&world.run(&[0x25]))[..4], [0xff; 4]);
}

/// SPC-4 6.35: every command that is listed can be asked for alone, and no other; usage begins with the code.
#[test]
fn supported_operation_codes() {
    let mut world = World::new();
    let list = good(&world.run(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]));
    assert_eq!(u32::from_be_bytes(list[..4].try_into().unwrap()) as usize, list.len() - 4);
    let mut listed = std::collections::BTreeSet::new();
    for entry in list[4..].chunks(8) {
        let (code, action, flags) = (entry[0], [entry[2], entry[3]], entry[5]);
        assert!(listed.insert((code, action)));
        let has_actions = flags & 1 != 0;
        let one = |world: &mut World, option: u8| {
            world.run(&[0xa3, 0x0c, option, code, action[0], action[1], 0, 0, 1, 0, 0, 0])
        };
        let (right, wrong) = if has_actions { (2, 1) } else { (1, 2) };
        illegal(&one(&mut world, wrong), Additional::INVALID_FIELD_IN_CDB);
        for option in [right, 3] {
            let data = good(&one(&mut world, option));
            assert_eq!(data[1], 3);
            assert_eq!(data[2..4], entry[6..8]);
            assert_eq!(data.len(), 4 + usize::from(entry[7]));
            assert_eq!(data[4], code);
            assert!(!has_actions || data[5] & 0x1f == action[1]);
        }
        let timeouts = good(&one(&mut world, 0x80 | right));
        assert_eq!((timeouts[1], timeouts.len()), (0x83, 4 + usize::from(entry[7]) + 12));
    }
    let sorted: Vec<_> = list[4..].chunks(8).map(|entry| (entry[0], entry[3])).collect();
    assert!(sorted.is_sorted(), "the table is searched by halves");
    for code in 0..=255 {
        let known = listed.iter().any(|(listed, _)| *listed == code);
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[1] = 0x1f;
        let response = world.run(&cdb);
        let unknown =
            response.sense.is_some_and(|sense| sense.additional == Additional::INVALID_OPERATION_CODE);
        assert_eq!(unknown, !known, "{code:#x}");
        if !known {
            let data = good(&world.run(&[0xa3, 0x0c, 1, code, 0, 0, 0, 0, 1, 0, 0, 0]));
            assert_eq!(data, [0, 1, 0, 0]);
        }
    }
    let with_timeouts = good(&world.run(&[0xa3, 0x0c, 0x80, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]));
    assert_eq!(with_timeouts.len() - 4, (list.len() - 4) / 8 * 20);
}

/// NACA is refused, with the place of the CONTROL byte, for every command.
#[test]
fn normal_aca_is_refused() {
    let mut world = World::new();
    for (code, at) in [(0x00, 5), (0x28, 9), (0xa8, 11), (0x88, 15)] {
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[at] = 0x04;
        let response = world.run(&cdb);
        illegal(&response, Additional::INVALID_FIELD_IN_CDB);
        assert_eq!(response.sense.unwrap().field.unwrap().byte, at as u16);
    }
}

/// SPC-4 7.5: what can be changed is what MODE SENSE says, and a list with anything else changes nothing.
#[test]
fn mode_select_keeps_to_the_mask() {
    let mut world = World::new();
    let pages =
        |world: &mut World, control: u8| good(&world.run(&[0x1a, 8, control << 6 | 0x3f, 0xff, 255, 0]));
    let (current, mask) = (pages(&mut world, 0), pages(&mut world, 1));
    assert_eq!(current, pages(&mut world, 2), "the defaults are current at first");
    let mut at = 4;
    while at < current.len() {
        let sub = current[at] & 0x40 != 0;
        let (header_len, len) =
            if sub { (4, 4 + usize::from(current[at + 3])) } else { (2, 2 + usize::from(current[at + 1])) };
        for bit in header_len * 8..len * 8 {
            let mut list = vec![0; 4];
            list.extend(&current[at..at + len]);
            list[4 + bit / 8] ^= 1 << (bit % 8);
            let response = world.write(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list);
            if mask[at + bit / 8] & 1 << (bit % 8) != 0 {
                good(&response);
                assert_ne!(pages(&mut world, 0), current);
                world.target.reset(super::super::Reset::Unit(LUN), &mut Vec::new()).unwrap();
                assert_eq!(world.attention(ONE), Some(Additional::DEVICE_RESET));
            } else {
                illegal(&response, Additional::INVALID_FIELD_IN_PARAMETERS);
                assert_eq!(response.sense.unwrap().field.unwrap().byte as usize, 4 + bit / 8);
            }
            assert_eq!(pages(&mut world, 0), current, "page at {at}, bit {bit}");
        }
        at += len;
    }
    assert_eq!(at, current.len());
    illegal(&world.run(&[0x1a, 8, 0xc8, 0, 255, 0]), Additional::SAVING_NOT_SUPPORTED);
    illegal(&world.run(&[0x1a, 8, 0x05, 0, 255, 0]), Additional::INVALID_FIELD_IN_CDB);
    illegal(&world.run(&[0x1a, 8, 0x0a, 5, 255, 0]), Additional::INVALID_FIELD_IN_CDB);
    illegal(&world.write(&[0x15, 0x11, 0, 0, 4, 0], &[0; 4]), Additional::INVALID_FIELD_IN_CDB);
}

/// Bug 6 of the list of others' bugs: lists that are empty, cut, or of ones.
#[test]
fn mode_select_lists() {
    let mut world = World::new();
    good(&world.run(&[0x15, 0x10, 0, 0, 0, 0]));
    good(&world.write(&[0x15, 0x10, 0, 0, 4, 0], &[0; 4]));
    illegal(&world.write(&[0x15, 0x10, 0, 0, 3, 0], &[0; 3]), Additional::PARAMETER_LIST_LENGTH);
    illegal(&world.write(&[0x15, 0x10, 0, 0, 8, 0], &[0; 4]), Additional::PARAMETER_LIST_LENGTH);
    assert!(world.write(&[0x15, 0x10, 0, 0, 20, 0], &[0xff; 20]).sense.is_some());
    let whole = good(&world.run(&[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0, 1, 0, 0]));
    let mut list = whole.clone();
    list[..8].copy_from_slice(&[0, 0, 0, 0, 1, 0, 0, 16]);
    for len in 0..=list.len() {
        let length = (len as u16).to_be_bytes();
        let response = world.write(&[0x55, 0x10, 0, 0, 0, 0, 0, length[0], length[1], 0], &list[..len]);
        if response.status != ScsiStatus::Good {
            illegal(&response, Additional::PARAMETER_LIST_LENGTH);
        }
    }
    assert_eq!(good(&world.run(&[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0, 1, 0, 0])), whole);
    let mut resized = list.clone();
    resized[15] ^= 1;
    let length = (list.len() as u16).to_be_bytes();
    let response = world.write(&[0x55, 0x10, 0, 0, 0, 0, 0, length[0], length[1], 0], &resized);
    illegal(&response, Additional::INVALID_FIELD_IN_PARAMETERS);
}

/// `D_SENSE` decides the format of sense data, for every nexus.
#[test]
fn sense_format_follows_the_control_page() {
    let mut world = World::new();
    let failing = cdb(0x88, 0, u64::MAX, 1);
    assert_eq!(world.run(&failing).sense_bytes()[0], 0x70);
    let control = [0, 0, 0, 0, 0x0a, 10, 0x06, 0x10, 0x00, 0, 0, 0, 0xff, 0xff, 0, 0];
    good(&world.write(&[0x15, 0x10, 0, 0, 16, 0], &control));
    assert_eq!(world.run(&failing).sense_bytes()[0], 0x72);
    assert_eq!(world.attention(TWO), Some(Additional::MODE_PARAMETERS_CHANGED));
    assert_eq!(world.attention(ONE), None);
}

/// SPC-4 6.33, SAM-5 4.7: the LUNs there are, and what there is to say where there is none.
#[test]
fn logical_units() {
    let mut world = World::new();
    world.target.add_unit(unit(300), &mut world.effects);
    let luns = [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x2c, 0, 0, 0, 0, 0, 0];
    let report = [0xa0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0];
    assert_eq!(good(&world.run(&report)), luns);
    assert_eq!(good(&world.run(&[0xa0, 0, 1, 0, 0, 0, 0, 0, 16, 0, 0, 0])), [0; 8]);
    illegal(&world.run(&[0xa0, 0, 3, 0, 0, 0, 0, 0, 16, 0, 0, 0]), Additional::INVALID_FIELD_IN_CDB);
    assert_eq!(world.attention(ONE), None, "REPORT LUNS tells what the unit attention would");
    assert_eq!(world.attention(TWO), Some(Additional::LUNS_CHANGED));

    let absent = 77 << 48;
    for lun in [absent, 0x8000 << 48, u64::MAX] {
        let data = good(&world.send_to(ONE, lun, &[0x12, 0, 0, 0, 36, 0], &[]));
        assert_eq!((data.len(), data[0]), (36, 0x7f));
        assert_eq!(good(&world.send_to(ONE, lun, &report, &[])), luns);
        assert_eq!(good(&world.send_to(ONE, lun, &[3, 0, 0, 0, 18, 0], &[]))[12], 0x25);
        illegal(&world.send_to(ONE, lun, &[0; 6], &[]), Additional::UNSUPPORTED_LUN);
        illegal(&world.send_to(ONE, lun, &cdb(0x28, 0, 0, 1), &[]), Additional::UNSUPPORTED_LUN);
    }
    world.target.remove_unit(VolumeNumber(300), &mut world.effects);
    assert_eq!(
        good(&world.run(&report)),
        luns[..16].iter().map(|b| if *b == 16 { 8 } else { *b }).collect::<Vec<_>>()
    );
}

/// SBC-3 5.23, 5.7, SPC-4 6.42, 6.9, 6.36: the small ones, and what they refuse.
#[test]
fn small_commands() {
    let mut world = World::new();
    world.commands.clear();
    for (flags, commands) in [(0x01, 0), (0x05, 0), (0x04, 0), (0x00, 1)] {
        good(&world.run(&[0x1b, 1, 0, 0, flags, 0]));
        assert_eq!(world.commands.len(), commands);
    }
    for flags in [0x02, 0x03, 0x10, 0xf1] {
        illegal(&world.run(&[0x1b, 0, 0, 0, flags, 0]), Additional::INVALID_FIELD_IN_CDB);
    }
    good(&world.run(&[0x1e, 0, 0, 0, 0, 0]));
    good(&world.run(&[0x1e, 0, 0, 0, 1, 0]));
    illegal(&world.run(&[0x1e, 0, 0, 0, 2, 0]), Additional::INVALID_FIELD_IN_CDB);
    good(&world.run(&[0x1d, 4, 0, 0, 0, 0]));
    illegal(&world.run(&[0x1d, 0x20, 0, 0, 0, 0]), Additional::INVALID_FIELD_IN_CDB);
    illegal(&world.run(&[0x1d, 0x10, 0, 0, 8, 0]), Additional::INVALID_FIELD_IN_CDB);
    assert_eq!(good(&world.run(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 32, 0])), [0, 0x1d, 0, 0]);
    assert_eq!(good(&world.run(&[0xb7, 0x1d, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0])), [0, 0x1d, 0, 0, 0, 0, 0, 0]);
    assert_eq!(good(&world.run(&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 32, 0])), [0, 0, 0, 2, 0, 0x2f]);
    illegal(&world.run(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 32, 0]), Additional::INVALID_FIELD_IN_CDB);
    assert_eq!(good(&world.run(&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0])), [0xda, 0, 0, 0]);
    assert_eq!(good(&world.run(&[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 32, 0, 0])).len(), 16);
    illegal(&world.run(&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0]), Additional::INVALID_FIELD_IN_CDB);
    illegal(&world.run(&[0xa3, 0x1f, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]), Additional::INVALID_FIELD_IN_CDB);
    illegal(&world.run(&[0x9c; 16]), Additional::INVALID_OPERATION_CODE);
}
