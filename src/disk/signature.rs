//! What others write where they live: told before metadata goes over it.

/// What the beginning of a file or device is known to be; `None` where no signature is there.
pub(super) fn signature(head: &[u8]) -> Option<&'static str> {
    SIGNATURES
        .iter()
        .find(|(at, magic, _)| head.get(*at..at + magic.len()) == Some(*magic))
        .map(|(_, _, name)| *name)
}

/// How long the filesystem is that begins here, in bytes; `None` where there is none that tells.
pub(super) fn filesystem_len(head: &[u8]) -> Option<u64> {
    match signature(head)? {
        EXT => ext_len(head),
        XFS => {
            let block_len = u32::from_be_bytes(bytes(head, 4)?);
            u64::from_be_bytes(bytes(head, 8)?).checked_mul(u64::from(block_len))
        }
        _ => None,
    }
}

/// The superblock of ext2 to ext4 stands at byte 1024 (kernel, Documentation/filesystems/ext4/super.rst).
fn ext_len(head: &[u8]) -> Option<u64> {
    let field = |at: usize| Some(u32::from_le_bytes(bytes(head, 1024 + at)?));
    let wide = field(0x60)? & EXT_64BIT != 0;
    let high = if wide { u64::from(field(0x150)?) << 32 } else { 0 };
    let block_len = 1024_u64.checked_shl(field(0x18)?)?;
    (high | u64::from(field(4)?)).checked_mul(block_len)
}

fn bytes<const LEN: usize>(head: &[u8], at: usize) -> Option<[u8; LEN]> {
    head.get(at..at + LEN)?.try_into().ok()
}

/// How much of the beginning is looked at, in bytes.
pub(super) const LOOKED_AT: usize = 128 << 10;

const EXT: &str = "an ext2, ext3 or ext4 filesystem";
const XFS: &str = "an XFS filesystem";
const EXT_64BIT: u32 = 0x80;

/// Where, which bytes, and what they say.
const SIGNATURES: [(usize, &[u8], &str); 10] = [
    (0, b"XFSB", XFS),
    (1024 + 0x38, &[0x53, 0xef], EXT),
    (0x10040, b"_BHRfS_M", "a btrfs filesystem"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (0, b"LUKS\xba\xbe", "a LUKS container"),
    (512, b"LABELONE", "an LVM physical volume"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an md array"),
    (4086, b"SWAPSPACE2", "a swap area"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (510, &[0x55, 0xaa], "a partition table or boot sector"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Each is told by its name, also where the bytes end early.
    #[test]
    fn each_signature_is_told() {
        for (at, magic, name) in SIGNATURES {
            let mut head = vec![0; at + magic.len()];
            head[at..].copy_from_slice(magic);
            assert_eq!(signature(&head), Some(name));
            head.pop();
            assert_eq!(signature(&head), None);
        }
        assert_eq!(signature(&vec![0; LOOKED_AT]), None);
    }

    /// The length of an ext4 filesystem with 64-bit block numbers, and of an XFS one.
    #[test]
    fn the_length_is_read() {
        let mut ext = vec![0; 4096];
        ext[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xef]);
        ext[1024 + 4..][..4].copy_from_slice(&5_u32.to_le_bytes());
        ext[1024 + 0x18..][..4].copy_from_slice(&2_u32.to_le_bytes());
        assert_eq!(filesystem_len(&ext), Some(5 * 4096));
        ext[1024 + 0x60] = 0x80;
        ext[1024 + 0x150] = 1;
        assert_eq!(filesystem_len(&ext), Some(((1 << 32) + 5) * 4096));
        ext[1024 + 0x18] = 0xff;
        assert_eq!(filesystem_len(&ext), None, "a block length that there is not");
        let xfs: Vec<u8> = b"XFSB".iter().copied().chain([0, 0, 16, 0]).chain(7_u64.to_be_bytes()).collect();
        assert_eq!(filesystem_len(&xfs), Some(7 * 4096));
    }
}
