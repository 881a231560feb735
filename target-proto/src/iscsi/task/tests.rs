//! Data out of its place, and in it.

use super::*;

fn out(transfer: Option<u32>, data_sn: u32, offset: u32, len: u32, last: bool) -> DataOut {
    DataOut {
        last,
        lun: 0,
        task: 1,
        transfer,
        exp_stat_sn: 0,
        data_sn,
        offset,
        data: Bytes::from((offset..offset + len).map(|at| at.to_le_bytes()[0]).collect::<Vec<u8>>()),
    }
}

/// However a write is cut into R2Ts and Data-Out PDUs, its bytes arrive in order, and short ones in few parts.
#[test]
fn data_is_collected_in_order() {
    for (burst_max, len) in [(512, 1), (512, 512), (1000, 300), (4096, 4096), (65_536, 64)] {
        let wanted = 8192;
        let mut collection = Collection { wanted, ..Collection::default() };
        let mut transfer = 0;
        while !collection.is_complete() {
            let ask = collection.ask(transfer, 1, burst_max).unwrap();
            let end = ask.offset + ask.len;
            for (data_sn, offset) in (0..).zip((ask.offset..end).step_by(len as usize)) {
                let here = len.min(end - offset);
                let pdu = out(Some(transfer), data_sn, offset, here, offset + here == end);
                assert_eq!(collection.receive(&pdu), Ok(()));
            }
            transfer += 1;
        }
        let data = collection.take_data();
        let expected: Vec<u8> = (0..wanted).map(|at| at.to_le_bytes()[0]).collect();
        assert_eq!(data.to_bytes(), expected, "bursts of {burst_max}, PDUs of {len}");
        assert!(data.parts().len() <= 4, "{} parts", data.parts().len());
    }
}

/// RFC 7143 11.5.1: the tag of an aborted task may be used again before the task has settled.
#[test]
fn an_aborted_tag_is_free_again() {
    let mut tasks = Tasks::new(2);
    let parameters = Parameters::default();
    let command = ScsiCommand {
        immediate: false,
        last: true,
        direction: Direction::None,
        attribute: TaskAttribute::Simple,
        lun: 0,
        task: 5,
        expected_len: 0,
        cmd_sn: 0,
        exp_stat_sn: 0,
        cdb: [0; 16],
        bidirectional_len: None,
        data: Bytes::new(),
    };
    let task = || Task::new(&command, None, Transfer::default(), &parameters);
    let first = tasks.insert(task()).unwrap();
    assert_eq!(tasks.find(5), Some(first));
    tasks.get_mut(first).unwrap().aborted = true;
    assert_eq!((tasks.find(5), tasks.aborting()), (None, 1));
    let second = tasks.insert(task()).unwrap();
    assert_eq!(tasks.find(5), Some(second));
    assert!(tasks.insert(task()).is_none());
    assert!(tasks.remove(first).is_some() && tasks.remove(first).is_none());
    assert_eq!(tasks.find(5), Some(second));
}
