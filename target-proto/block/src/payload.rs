//! The bytes of a write or of a read, shared and never copied on their way.

use bytes::Bytes;

/// Bytes in one or more shared parts: a write's data as its PDUs brought it, or what a read returned.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    parts: Parts,
    len: usize,
}

#[derive(Clone, Debug)]
enum Parts {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Payload {
    /// No bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { parts: Parts::One(Bytes::new()), len: 0 }
    }

    /// How many bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parts, in order.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }

    /// Appends a part.
    pub fn push(&mut self, part: Bytes) {
        if part.is_empty() {
            return;
        }
        self.len += part.len();
        match &mut self.parts {
            Parts::One(first) if first.is_empty() => *first = part,
            Parts::One(first) => self.parts = Parts::Many(vec![std::mem::take(first), part]),
            Parts::Many(parts) => parts.push(part),
        }
    }

    /// Copies every byte to the start of `target`, which has at least `len()` bytes.
    ///
    /// # Panics
    /// When `target` is shorter.
    pub fn copy_to(&self, target: &mut [u8]) {
        let mut at = 0;
        for part in self.parts() {
            target[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// The bytes `offset..offset + len`, sharing the parts.
    ///
    /// # Panics
    /// When the range is not inside the payload.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        assert!(offset + len <= self.len, "slice {offset}+{len} of {} bytes", self.len);
        let mut slice = Self::new();
        let (mut skip, mut left) = (offset, len);
        for part in self.parts() {
            if left == 0 {
                break;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let take = left.min(part.len() - skip);
            slice.push(part.slice(skip..skip + take));
            (skip, left) = (0, left - take);
        }
        slice
    }

    /// All bytes in one piece: shared where there is one part, copied where there are more.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match &self.parts {
            Parts::One(part) => part.clone(),
            Parts::Many(parts) => parts.concat().into(),
        }
    }
}

impl Default for Parts {
    fn default() -> Self {
        Self::One(Bytes::new())
    }
}

impl From<Bytes> for Payload {
    fn from(part: Bytes) -> Self {
        Self { len: part.len(), parts: Parts::One(part) }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

/// Two payloads are equal when their bytes are, however they are cut.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        let bytes = |payload: &Self| payload.parts().to_vec().into_iter().flatten();
        self.len == other.len && bytes(self).eq(bytes(other))
    }
}

impl Eq for Payload {}

#[cfg(test)]
mod tests {
    use super::*;

    /// However a payload is cut into parts, every slice of it is the same bytes.
    #[test]
    fn slices_do_not_depend_on_the_cuts() {
        let whole: Vec<u8> = (0..12).collect();
        for first in 0..=12 {
            for second in first..=12 {
                let mut payload = Payload::new();
                for part in [&whole[..first], &whole[first..second], &whole[second..]] {
                    payload.push(Bytes::copy_from_slice(part));
                }
                for from in 0..=12 {
                    for to in from..=12 {
                        assert_eq!(payload.slice(from, to - from).to_bytes(), whole[from..to]);
                    }
                }
                let mut copy = [0; 12];
                payload.copy_to(&mut copy);
                assert_eq!(copy, *whole);
            }
        }
    }
}
