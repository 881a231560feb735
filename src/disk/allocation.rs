//! What occupies space in a backing, for GET LBA STATUS and its like.

use block::{Extent, Run};
use rustix::{fs::SeekFrom, io::Errno};

use super::backing::OpenFile;

/// What occupies space, by the holes that the filesystem tells. A device or filesystem without holes occupies all.
/// Stops after [`RUNS_MAX`] runs.
pub(super) fn allocation(file: &OpenFile, extent: Extent, block_size: u64) -> Result<Vec<Run>, Errno> {
    let seek = |from| match rustix::fs::seek(&file.locked, from) {
        Ok(found) => Ok(found.min(extent.end())),
        // Nothing of the kind up to the end of the file.
        Err(Errno::NXIO) => Ok(extent.end()),
        Err(errno) => Err(errno),
    };
    let mut runs: Vec<Run> = Vec::new();
    let mut push = |from: u64, to: u64, mapped| match runs.last_mut() {
        _ if from == to => {}
        Some(last) if last.mapped == mapped => last.extent.len = to - last.extent.offset,
        _ => runs.push(Run { extent: Extent::new(from, to - from), mapped }),
    };
    let mut at = extent.offset;
    for _ in 0..RUNS_MAX / 2 {
        let data = match seek(SeekFrom::Data(at)) {
            Err(Errno::INVAL) => at,
            found => found?,
        };
        // A block of which a part is mapped is mapped.
        let data = (data - data % block_size).max(at);
        push(at, data, false);
        if data == extent.end() {
            break;
        }
        let hole = match seek(SeekFrom::Hole(data)) {
            Err(Errno::INVAL) => extent.end(),
            found => found?.next_multiple_of(block_size).min(extent.end()),
        };
        push(data, hole, true);
        at = hole;
        if at == extent.end() {
            break;
        }
    }
    Ok(runs)
}

/// The runs that one look at the allocation tells at most.
const RUNS_MAX: usize = 256;
