//! Backing files: created sparse, compared byte by byte.

use std::{
    fs::File,
    io::{BufReader, Read as _},
    path::Path,
};

use anyhow::{Context, Result, bail};

/// Creates `path` as a sparse file of `size_bytes` unless it exists.
///
/// # Errors
/// When the file system refuses.
pub fn create_if_missing(path: &Path, size_bytes: u64) -> Result<()> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.len() < size_bytes {
        file.set_len(size_bytes)?;
    }
    Ok(())
}

/// What `cmp -n SIZE` does: fails with the offset of the first byte that differs.
///
/// # Errors
/// When the files differ within `size_bytes` or cannot be read.
pub fn compare(left: &Path, right: &Path, size_bytes: u64) -> Result<()> {
    let open = |path: &Path| -> Result<_> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(BufReader::with_capacity(CHUNK, file))
    };
    let (mut one, mut other) = (open(left)?, open(right)?);
    let (mut one_chunk, mut other_chunk) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut offset = 0_u64;
    while offset < size_bytes {
        let len = usize::try_from(size_bytes - offset).unwrap_or(CHUNK).min(CHUNK);
        one.read_exact(&mut one_chunk[..len]).with_context(|| format!("{} is short", left.display()))?;
        other.read_exact(&mut other_chunk[..len]).with_context(|| format!("{} is short", right.display()))?;
        if let Some(at) = (0..len).find(|&at| one_chunk[at] != other_chunk[at]) {
            bail!("{} and {} differ at byte {}", left.display(), right.display(), offset + at as u64);
        }
        offset += len as u64;
    }
    Ok(())
}

const CHUNK: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A difference is found at its offset, and only within the compared size.
    #[test]
    fn differences_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (left, right) = (dir.path().join("left"), dir.path().join("right"));
        std::fs::write(&left, [7; 5000]).unwrap();
        let mut bytes = [7; 5000];
        bytes[4097] = 8;
        std::fs::write(&right, bytes).unwrap();
        compare(&left, &right, 4097).unwrap();
        let error = compare(&left, &right, 5000).unwrap_err().to_string();
        assert!(error.contains("byte 4097"), "{error}");
    }
}
