//! Buffers for disks: aligned as `O_DIRECT` wants it, and kept by their thread for the next operation.
//!
//! Memory is taken from the allocator in size classes, powers of two from 4 KiB to 1 MiB; a larger buffer gets
//! what it needs and is given back at once. A shard keeps up to [`KEPT_MAX`] bytes of each class, so that in
//! steady state an I/O allocates nothing; other threads keep nothing. Keeping is per thread and takes no lock:
//! a buffer that is dropped elsewhere goes back to the allocator there.
#![expect(unsafe_code, reason = "aligned memory has to come from the allocator, and outlives a borrow")]

use std::{
    alloc::{self, Layout},
    cell::RefCell,
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

use bytes::Bytes;

/// Aligned memory with one owner, of which the first bytes are filled.
///
/// Invariant: `start` is an allocation of `layout` by the global allocator, every byte of it is initialised, it
/// belongs to this value alone, and `filled` is not greater than its size. Bytes behind `filled` may be what an
/// earlier operation left there, so they are never shown: only the disk's own code overwrites them.
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
    filled: usize,
}

impl Buffer {
    /// A buffer with room for at least `len` bytes, none of them filled.
    #[must_use]
    pub fn with_room(len: usize) -> Self {
        let layout = layout_for(len);
        let kept = class_of(layout.size())
            .and_then(|class| KEPT.try_with(|kept| kept.borrow_mut().classes[class].pop()).ok().flatten());
        Self { start: kept.unwrap_or_else(|| allocate(layout)), layout, filled: 0 }
    }

    /// A buffer of `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::with_room(len);
        buffer.filled = len;
        buffer.fill(0);
        buffer
    }

    /// How many bytes it has room for; a multiple of [`ALIGNMENT`].
    #[must_use]
    pub const fn room(&self) -> usize {
        self.layout.size()
    }

    /// How many bytes are filled.
    #[must_use]
    pub const fn filled(&self) -> usize {
        self.filled
    }

    /// The first byte. It stays where it is when the buffer moves.
    pub(super) const fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes `from..to`, filled or not, to be overwritten.
    ///
    /// # Panics
    /// When the range is not inside the room.
    pub(super) fn room_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        // SAFETY: the invariant of `Buffer`; the borrow of `self` keeps everyone else away.
        let room = unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) };
        &mut room[from..to]
    }

    /// Tells that the first `filled` bytes, and no more, were written for the owner of this buffer.
    ///
    /// # Panics
    /// When there is no room for so many.
    pub(super) fn set_filled(&mut self, filled: usize) {
        assert!(filled <= self.layout.size(), "{filled} bytes filled of {}", self.layout.size());
        self.filled = filled;
    }

    /// The filled bytes, shared. The last share gives the memory back, to the thread that drops it.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

// SAFETY: the invariant of `Buffer`: one owner, and the allocator frees what any thread allocated.
unsafe impl Send for Buffer {}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the invariant of `Buffer`; the borrow of `self` keeps the bytes unchanged.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.filled) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.room_mut(0, self.filled)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("room", &self.room())
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let kept = class_of(self.layout.size()).is_some_and(|class| {
            KEPT.try_with(|kept| kept.borrow_mut().keep(class, self.start)).unwrap_or(false)
        });
        if !kept {
            // SAFETY: the invariant of `Buffer`, which ends here.
            unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

/// Lets this thread keep the buffers that are dropped on it. A shard says so when it starts.
pub(super) fn keep_on_this_thread() {
    KEPT.with(|kept| kept.borrow_mut().bytes_max = KEPT_MAX);
}

/// The memory that this thread keeps, by class.
///
/// Invariant: each entry of class `n` is an allocation of `layout_of_class(n)` that nobody else has, with every
/// byte initialised.
struct Kept {
    classes: [Vec<NonNull<u8>>; CLASSES],
    bytes_max: usize,
}

impl Kept {
    fn keep(&mut self, class: usize, start: NonNull<u8>) -> bool {
        let class_bytes = (self.classes[class].len() + 1) * layout_of_class(class).size();
        let keep = class_bytes <= self.bytes_max;
        if keep {
            self.classes[class].push(start);
        }
        keep
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (class, starts) in self.classes.iter_mut().enumerate() {
            for start in starts.drain(..) {
                // SAFETY: the invariant of `Kept`, which the drain ends.
                unsafe { alloc::dealloc(start.as_ptr(), layout_of_class(class)) };
            }
        }
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { classes: [const { Vec::new() }; CLASSES], bytes_max: 0 }) };
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: `layout_for` gives no empty layout.
    let start = unsafe { alloc::alloc_zeroed(layout) };
    NonNull::new(start).unwrap_or_else(|| alloc::handle_alloc_error(layout))
}

/// The memory for `len` bytes: its class, or what it needs where it is beyond the largest class.
fn layout_for(len: usize) -> Layout {
    let size = if len <= CLASS_MAX {
        len.next_power_of_two().max(ALIGNMENT)
    } else {
        len.next_multiple_of(ALIGNMENT)
    };
    Layout::from_size_align(size, ALIGNMENT)
        .expect("a payload fits into memory, so its buffer's size is valid")
}

fn layout_of_class(class: usize) -> Layout {
    layout_for(ALIGNMENT << class)
}

/// The class of memory of `size` bytes, where it has one.
fn class_of(size: usize) -> Option<usize> {
    (size <= CLASS_MAX).then(|| (size / ALIGNMENT).ilog2() as usize)
}

/// Where buffers start and the smallest size, in bytes: a page, which is enough for every device's `O_DIRECT`.
pub const ALIGNMENT: usize = 4096;

/// The largest class, in bytes.
const CLASS_MAX: usize = 1 << 20;

const CLASSES: usize = (CLASS_MAX / ALIGNMENT).ilog2() as usize + 1;

/// What a shard keeps of each class at most, in bytes: reads of 128 KiB at a queue depth of 64.
pub const KEPT_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_bytes() -> usize {
        KEPT.with(|kept| {
            kept.borrow()
                .classes
                .iter()
                .enumerate()
                .map(|(class, kept)| kept.len() * (ALIGNMENT << class))
                .sum()
        })
    }

    /// Every buffer starts where `O_DIRECT` wants it and has the room asked for, in a class or beyond.
    #[test]
    fn buffers_are_aligned() {
        for len in [0, 1, 512, 4096, 4097, 65_536, CLASS_MAX, CLASS_MAX + 1, 5 << 20] {
            let buffer = Buffer::zeroed(len);
            assert_eq!(buffer.start().align_offset(ALIGNMENT), 0);
            assert!(buffer.room() >= len && buffer.room().is_multiple_of(ALIGNMENT));
            assert!(buffer.len() == len && buffer.iter().all(|byte| *byte == 0));
        }
    }

    /// A shard takes the memory that it gave back, and no byte of its earlier owner is to be seen.
    #[test]
    fn memory_is_used_again_and_shows_nothing_old() {
        keep_on_this_thread();
        let mut secret = Buffer::zeroed(8192);
        secret.fill(0x5a);
        let start = secret.start();
        drop(secret);
        let mut next = Buffer::with_room(8000);
        assert_eq!(next.start(), start);
        assert!(next.is_empty());
        next.room_mut(0, 3).copy_from_slice(b"new");
        next.set_filled(3);
        assert_eq!(&next[..], b"new");
        drop(next);
        assert!(Buffer::zeroed(8192).iter().all(|byte| *byte == 0));
    }

    /// Memory is bounded: what is kept of a class, what is kept of large buffers, and what other threads keep.
    #[test]
    fn a_thread_keeps_a_bounded_amount() {
        keep_on_this_thread();
        let many: Vec<_> = (0..20).map(|_| Buffer::with_room(CLASS_MAX)).collect();
        drop(many);
        assert_eq!(kept_bytes(), KEPT_MAX);
        drop(Buffer::with_room(CLASS_MAX + 1));
        assert_eq!(kept_bytes(), KEPT_MAX);
        let shared = Buffer::zeroed(4096).into_bytes();
        let elsewhere = std::thread::spawn(move || {
            drop(shared);
            kept_bytes()
        });
        assert_eq!(elsewhere.join().unwrap(), 0);
    }

    /// What a read returned is shared without a copy and can end on any thread.
    #[test]
    fn shares_end_anywhere() {
        keep_on_this_thread();
        let mut buffer = Buffer::zeroed(7);
        buffer.copy_from_slice(b"one two");
        let start = buffer.start().cast_const();
        let shared = buffer.into_bytes();
        assert_eq!(shared.as_ptr(), start);
        let part = shared.slice(4..);
        std::thread::spawn(move || drop(shared)).join().unwrap();
        assert_eq!(&part[..], b"two");
        drop(part);
        assert_eq!(kept_bytes(), ALIGNMENT);
    }
}
