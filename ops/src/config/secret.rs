//! Secrets: what a file with one has to be like. They are wiped from memory when dropped, and never printed.

use std::fmt;

use thiserror::Error;
use zeroize::Zeroizing;

/// A secret from a file.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// Why a file is no good as a secret's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SecretError {
    /// Others may read it, or write it.
    #[error("mode {mode:04o} lets others read the secret: chmod 600 the file")]
    Mode {
        /// The permission bits.
        mode: u32,
    },
    /// The secret is short.
    #[error("the secret has {len} bytes, and {min} are the least: openssl rand -hex 32 makes one")]
    Short {
        /// How many bytes it has, without a line break at the end.
        len: usize,
        /// How many it needs.
        min: usize,
    },
    /// The secret is long.
    #[error("the secret has {len} bytes, and {max} are the most")]
    Long {
        /// How many bytes it has, without a line break at the end.
        len: usize,
        /// How many it may have.
        max: usize,
    },
    /// Both directions of CHAP have the same secret.
    #[error("the secrets of chap and chap-mutual are the same: RFC 7143 forbids that, make another one")]
    Same,
}

impl Secret {
    /// The secret that nodes prove to each other, from a file's content and mode (`st_mode`).
    ///
    /// # Errors
    /// A mode wider than 0600, fewer than 16 bytes, more than 1024.
    pub fn cluster(content: Vec<u8>, mode: u32) -> Result<Self, SecretError> {
        Self::new(content, mode, CLUSTER_MIN, CLUSTER_MAX)
    }

    /// A secret of CHAP, from a file's content and mode (`st_mode`).
    ///
    /// # Errors
    /// A mode wider than 0600, fewer than 12 bytes (RFC 7143 9.2.1), more than 255.
    pub fn chap(content: Vec<u8>, mode: u32) -> Result<Self, SecretError> {
        Self::new(content, mode, CHAP_MIN, CHAP_MAX)
    }

    /// The secret itself, without the line break at the end of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn new(content: Vec<u8>, mode: u32, min: usize, max: usize) -> Result<Self, SecretError> {
        let mut secret = Zeroizing::new(content);
        if mode & 0o077 != 0 {
            return Err(SecretError::Mode { mode: mode & 0o7777 });
        }
        if secret.last() == Some(&b'\n') {
            secret.pop();
            if secret.last() == Some(&b'\r') {
                secret.pop();
            }
        }
        match secret.len() {
            len if len < min => Err(SecretError::Short { len, min }),
            len if len > max => Err(SecretError::Long { len, max }),
            _ => Ok(Self(secret)),
        }
    }
}

/// Checks that the two directions of CHAP have different secrets (RFC 7143 9.2.1).
///
/// # Errors
/// They are the same.
pub fn differ(chap: &Secret, mutual: &Secret) -> Result<(), SecretError> {
    if chap.bytes() == mutual.bytes() { Err(SecretError::Same) } else { Ok(()) }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

const CLUSTER_MIN: usize = 16;
const CLUSTER_MAX: usize = 1024;
const CHAP_MIN: usize = 12;
const CHAP_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: u32 = 0o100_600;

    /// The contract: secrets come from files with mode 0600 or stricter.
    #[test]
    fn only_a_private_file_is_taken() {
        let secret = || b"0123456789abcdef".to_vec();
        for mode in [0o100_600, 0o100_400, 0o600] {
            assert!(Secret::cluster(secret(), mode).is_ok(), "{mode:o}");
        }
        for bit in 0..6 {
            let mode = 0o100_600 | 1 << bit;
            let error = Secret::cluster(secret(), mode).expect_err("others may use it");
            assert_eq!(error, SecretError::Mode { mode: 0o600 | 1 << bit });
        }
    }

    /// RFC 7143 9.2.1: a CHAP secret of fewer than 96 bits is refused.
    #[test]
    fn lengths() {
        for (len, good) in [(0, false), (11, false), (12, true), (255, true), (256, false)] {
            assert_eq!(Secret::chap(vec![b'x'; len], PRIVATE).is_ok(), good, "{len}");
        }
        for (len, good) in [(15, false), (16, true), (1024, true), (1025, false)] {
            assert_eq!(Secret::cluster(vec![b'x'; len], PRIVATE).is_ok(), good, "{len}");
        }
    }

    #[test]
    fn one_line_break_does_not_count() {
        for (content, secret) in [
            ("0123456789abcdef\n", "0123456789abcdef"),
            ("0123456789abcdef\r\n", "0123456789abcdef"),
            ("0123456789abcdef\n\n", "0123456789abcdef\n"),
            ("0123456789abcdef ", "0123456789abcdef "),
        ] {
            let read = Secret::cluster(content.into(), PRIVATE).expect("good");
            assert_eq!(read.bytes(), secret.as_bytes());
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::chap(b"correct horse battery".to_vec(), PRIVATE).expect("good");
        assert!(!format!("{secret:?}").contains("horse"));
        assert_eq!(differ(&secret, &secret.clone()), Err(SecretError::Same));
    }
}
