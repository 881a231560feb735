//! CHAP, one-way and mutual (RFC 7143 12.1.3, RFC 1994, RFC 3720 for MD5, IANA's numbers for the newer hashes).

use hmac::{Hmac, KeyInit, Mac};
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroizing;

/// A name and the secret that proves it.
#[derive(Clone)]
pub struct Credentials {
    /// CHAP_N.
    pub user: String,
    /// The shared secret. It leaves memory with the last copy.
    pub secret: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Credentials {
    /// Names the user; a secret has no place in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The hash of a response (CHAP_A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// MD5, for initiators that know nothing else.
    Md5 = 5,
    /// SHA-1
    Sha1 = 6,
    /// SHA-256
    Sha256 = 7,
    /// SHA3-256
    Sha3 = 8,
}

impl Algorithm {
    /// The algorithm of a number, where we have it.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            5 => Self::Md5,
            6 => Self::Sha1,
            7 => Self::Sha256,
            8 => Self::Sha3,
            _ => return None,
        })
    }

    /// The response to a challenge: the hash of identifier, secret and challenge.
    #[must_use]
    pub fn response(self, identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        fn hash<D: Digest>(identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
            let state = D::new().chain_update([identifier]).chain_update(secret).chain_update(challenge);
            state.finalize().to_vec()
        }
        match self {
            Self::Md5 => hash::<Md5>(identifier, secret, challenge),
            Self::Sha1 => hash::<Sha1>(identifier, secret, challenge),
            Self::Sha256 => hash::<Sha256>(identifier, secret, challenge),
            Self::Sha3 => hash::<Sha3_256>(identifier, secret, challenge),
        }
    }
}

/// Makes challenges and knows its own again.
///
/// A challenge is 16 random bytes and a keyed hash of them, so that one that an initiator reflects is recognised on
/// any connection without a list of those given out (RFC 7143 12.1.3 wants that check).
#[derive(Clone)]
pub struct Challenger {
    key: Zeroizing<[u8; 32]>,
}

impl std::fmt::Debug for Challenger {
    /// The key has no place in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Challenger").finish_non_exhaustive()
    }
}

impl Challenger {
    /// A challenger with a key from the operating system's random source. All connections of a process share one.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self { key: Zeroizing::new(key) }
    }

    /// A challenge made from fresh random bytes.
    #[must_use]
    pub fn challenge(&self, nonce: [u8; NONCE_LEN]) -> [u8; CHALLENGE_LEN] {
        let mut challenge = [0; CHALLENGE_LEN];
        challenge[..NONCE_LEN].copy_from_slice(&nonce);
        challenge[NONCE_LEN..].copy_from_slice(&self.mark(&nonce));
        challenge
    }

    /// Whether a challenge is one of ours.
    #[must_use]
    pub fn made(&self, challenge: &[u8]) -> bool {
        let Some((nonce, mark)) = challenge.split_at_checked(NONCE_LEN) else { return false };
        bool::from(self.mark(nonce)[..].ct_eq(mark))
    }

    fn mark(&self, nonce: &[u8]) -> [u8; CHALLENGE_LEN - NONCE_LEN] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key[..]).expect("HMAC takes a key of any length");
        mac.update(nonce);
        let mut mark = [0; CHALLENGE_LEN - NONCE_LEN];
        mark.copy_from_slice(&mac.finalize().into_bytes()[..CHALLENGE_LEN - NONCE_LEN]);
        mark
    }
}

/// A challenge that waits for its response.
#[derive(Clone, Debug)]
pub struct Asked {
    /// CHAP_A.
    pub algorithm: Algorithm,
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C.
    pub challenge: [u8; CHALLENGE_LEN],
}

impl Asked {
    /// Whether name and response prove the credentials. A wrong name takes as long as a wrong secret.
    #[must_use]
    pub fn proves(&self, credentials: &Credentials, user: &str, response: &[u8]) -> bool {
        let expected = self.algorithm.response(self.identifier, &credentials.secret, &self.challenge);
        let right_user: Choice = credentials.user.as_bytes().ct_eq(user.as_bytes());
        let right_response: Choice = expected[..].ct_eq(response);
        bool::from(right_user & right_response)
    }
}

/// The random part of a challenge, in bytes.
pub const NONCE_LEN: usize = 16;
/// A challenge, in bytes.
pub const CHALLENGE_LEN: usize = 32;
/// The longest challenge or response that an initiator may send, in bytes (RFC 7143 12.1.3).
pub const CHAP_BINARY_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::text::hex;

    /// RFC 1994 4.1: the response is the hash of identifier, secret and challenge, for each algorithm. The values are
    /// those of `printf '\1secretchallenge' | openssl dgst`.
    #[test]
    fn responses_are_hashes() {
        for (number, digest) in [
            (5, "0x46e47770030e2b4e26a0db72a7efec00"),
            (6, "0x011f25d29fe1baaced569c0d7e4878e40ddb7d7e"),
            (7, "0x2dfa0526f4764864b7c3c5bc6596bcead3d8dbd984f4fc1d9f330299f0beced4"),
            (8, "0x9444877c4dff778ed2add0f102dcd561e11944e7e948ee1b89508451a9e680ad"),
        ] {
            let algorithm = Algorithm::from_number(number).unwrap();
            assert_eq!(hex(&algorithm.response(1, b"secret", b"challenge")), digest, "{algorithm:?}");
        }
        assert_eq!(Algorithm::from_number(4), None);
    }

    /// reliability.md section 4: name and secret are both needed, and neither alone helps.
    #[test]
    fn only_name_and_secret_together_prove() {
        let credentials =
            Credentials { user: "db".to_owned(), secret: Zeroizing::new(b"twelve bytes".to_vec()) };
        let asked = Asked { algorithm: Algorithm::Sha256, identifier: 7, challenge: [3; CHALLENGE_LEN] };
        let right = asked.algorithm.response(7, b"twelve bytes", &[3; CHALLENGE_LEN]);
        assert!(asked.proves(&credentials, "db", &right));
        assert!(!asked.proves(&credentials, "dc", &right));
        assert!(!asked.proves(&credentials, "db", &right[1..]));
        assert!(!asked.proves(&credentials, "db", b""));
        let wrong = asked.algorithm.response(8, b"twelve bytes", &[3; CHALLENGE_LEN]);
        assert!(!asked.proves(&credentials, "db", &wrong));
        assert!(!format!("{credentials:?}").contains("twelve"));
    }

    /// RFC 7143 12.1.3: our own challenge is known again, from whichever connection, and nobody else's is.
    #[test]
    fn a_reflected_challenge_is_recognised() {
        let challenger = Challenger::new([9; 32]);
        let challenge = challenger.challenge([5; NONCE_LEN]);
        assert!(challenger.made(&challenge));
        assert!(!Challenger::new([8; 32]).made(&challenge));
        assert!(!challenger.made(&challenge[..31]) && !challenger.made(&[]) && !challenger.made(&[0; 32]));
    }
}
