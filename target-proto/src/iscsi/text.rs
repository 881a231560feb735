//! Text as the login and text requests carry it: `key=value`, each ended by a zero byte (RFC 7143 chapter 6).

use nom::bytes::complete::{take_till, take_while_m_n};
use nom::character::complete::char;
use nom::combinator::all_consuming;
use nom::multi::many0;
use nom::sequence::{preceded, separated_pair};
use nom::{IResult, Parser};
use thiserror::Error;

/// A key and its value, as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// At most 63 bytes.
    pub key: &'a str,
    /// At most 8 KiB; what a key allows is checked with its meaning.
    pub value: &'a str,
}

/// Splits a text into its pairs.
///
/// # Errors
/// When it is not UTF-8, has no `=`, has a key that is not a name, or names a key twice: each of these ends a login.
pub fn pairs(text: &[u8]) -> Result<Vec<Pair<'_>>, TextError> {
    let text = std::str::from_utf8(text).map_err(|error| TextError::NotText { at: error.valid_up_to() })?;
    // Some initiators pad with zero bytes, so an empty line says nothing.
    let line = preceded(many0(char(END)), pair);
    let (rest, pairs) = many0(line).parse(text).map_err(|_| TextError::NotPair { at: 0 })?;
    let at = text.len() - rest.len();
    all_consuming(many0(char(END)))
        .parse(rest)
        .map_err(|_: nom::Err<nom::error::Error<&str>>| TextError::NotPair { at })?;
    let mut keys: Vec<&str> = pairs.iter().map(|pair| pair.key).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(TextError::Twice { key: two[0].to_owned() }),
        None => Ok(pairs),
    }
}

fn pair(text: &str) -> IResult<&str, Pair<'_>> {
    let key = take_while_m_n(1, KEY_MAX, |c: char| c.is_ascii_alphanumeric() || ".-+@_".contains(c));
    let value = take_till(|c| c == END);
    let (rest, (key, value)) = separated_pair(key, char('='), value).parse(text)?;
    Ok((rest.strip_prefix(END).unwrap_or(rest), Pair { key, value }))
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// It is not UTF-8.
    #[error("text is not UTF-8 at byte {at}")]
    NotText {
        /// The first wrong byte.
        at: usize,
    },
    /// A key is not a name of at most 63 letters, digits and `.-+@_`, or no `=` follows it.
    #[error("no key=value at byte {at}")]
    NotPair {
        /// Where the pair should start.
        at: usize,
    },
    /// A key stands there twice.
    #[error("key {key} is there twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// The text of one negotiation is longer than we take.
    #[error("text of more than {len_max} bytes")]
    TooLong {
        /// The most we take, in bytes.
        len_max: usize,
    },
}

/// Text that comes in several requests (the C bit, RFC 7143 6.2), up to a limit.
#[derive(Debug, Default)]
pub struct Gathered {
    text: Vec<u8>,
    /// Of this negotiation so far, also what was read already.
    total: usize,
}

impl Gathered {
    /// Appends what a request carries.
    ///
    /// # Errors
    /// When the negotiation has more text than anybody needs.
    pub fn push(&mut self, text: &[u8]) -> Result<(), TextError> {
        self.total += text.len();
        if self.total > TEXT_MAX {
            return Err(TextError::TooLong { len_max: TEXT_MAX });
        }
        self.text.extend_from_slice(text);
        Ok(())
    }

    /// The text, once its last request is there.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.text)
    }
}

/// An answer in the making.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer(Vec<u8>);

impl Answer {
    /// Appends a pair.
    pub fn put(&mut self, key: &str, value: &str) {
        for part in [key, "=", value, "\0"] {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    /// How many bytes it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is answered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text.
    #[must_use]
    pub fn into_bytes(self) -> bytes::Bytes {
        self.0.into()
    }
}

/// A number, decimal or hexadecimal (RFC 7143 6.1).
#[must_use]
pub fn number(value: &str) -> Option<u64> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        None if value.bytes().all(|digit| digit.is_ascii_digit()) => value.parse().ok(),
        _ => None,
    }
}

/// A string of at most `len_max` bytes, in hexadecimal or base64 (RFC 7143 6.1).
#[must_use]
pub fn binary(value: &str, len_max: usize) -> Option<Vec<u8>> {
    let bytes = match value.split_at_checked(2)? {
        ("0x" | "0X", digits) => from_hex(digits)?,
        ("0b" | "0B", digits) => from_base64(digits)?,
        _ => return None,
    };
    (!bytes.is_empty() && bytes.len() <= len_max).then_some(bytes)
}

/// Bytes as a hexadecimal constant.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|nibble| u8::try_from(nibble).ok());
    let odd = digits.len() % 2;
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    let (first, rest) = digits.as_bytes().split_at(odd);
    for &digit in first {
        bytes.push(nibble(digit)?);
    }
    for two in rest.chunks_exact(2) {
        bytes.push(nibble(two[0])? << 4 | nibble(two[1])?);
    }
    Some(bytes)
}

/// Base64 with its padding (RFC 4648 section 4).
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for four in digits.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for &digit in four {
            bits = bits << 6 | base64_digit(digit)?;
        }
        bits <<= 6 * (4 - four.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    Some(bytes)
}

fn base64_digit(digit: u8) -> Option<u32> {
    Some(match digit {
        b'A'..=b'Z' => u32::from(digit - b'A'),
        b'a'..=b'z' => u32::from(digit - b'a') + 26,
        b'0'..=b'9' => u32::from(digit - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

const END: char = '\0';
/// The longest key (RFC 7143 6.1).
const KEY_MAX: usize = 63;
/// The most text that one negotiation may have, in bytes.
const TEXT_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(&str, &str)>, TextError> {
        pairs(text.as_bytes()).map(|pairs| pairs.iter().map(|pair| (pair.key, pair.value)).collect())
    }

    /// RFC 7143 6.1: the form of a pair, and what a login dies of (target.md recipe 27, CVE-2013-2850).
    #[test]
    fn a_text_is_pairs_or_an_error() {
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("A=1\0B=\0\0\0C=x=y"), Ok(vec![("A", "1"), ("B", ""), ("C", "x=y")]));
        assert_eq!(read("A=1\0B"), Err(TextError::NotPair { at: 4 }));
        assert_eq!(read("=1"), Err(TextError::NotPair { at: 0 }));
        assert_eq!(read("A B=1"), Err(TextError::NotPair { at: 0 }));
        assert_eq!(read("A=1\0A=1\0"), Err(TextError::Twice { key: "A".to_owned() }));
        assert_eq!(pairs(b"A=\xff"), Err(TextError::NotText { at: 2 }));
        let long = "K".repeat(64);
        assert_eq!(read(&format!("{}=1", &long[1..])).map(|pairs| pairs.len()), Ok(1));
        assert_eq!(read(&format!("{long}=1")), Err(TextError::NotPair { at: 0 }));
    }

    /// RFC 7143 6.1: hexadecimal is as good as decimal (target.md recipe 31).
    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number("65536"), Some(65536));
        assert_eq!(number("0x10000"), Some(65536));
        assert_eq!(number("0XfF"), Some(255));
        for wrong in ["", "0x", "-1", "+1", "1 ", "0x+1", "18446744073709551616", "x", "1e3"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }

    /// RFC 7143 6.1 and RFC 4648 10: the vectors of base64, and hexadecimal of any length.
    #[test]
    fn binary_values_are_hexadecimal_or_base64() {
        for (text, bytes) in [("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob")] {
            assert_eq!(binary(&format!("0b{text}"), 9), Some(bytes.as_bytes().to_vec()));
        }
        assert_eq!(binary("0x0aFf", 2), Some(vec![0x0a, 0xff]));
        assert_eq!(binary("0xabc", 2), Some(vec![0x0a, 0xbc]));
        for wrong in ["", "0", "0x", "0b", "0xg0", "0bZ", "0bZg===", "0bZ g=", "1234", "0x000000", "é"] {
            assert_eq!(binary(wrong, 2), None, "{wrong}");
        }
        assert_eq!(binary(&hex(&[0, 1, 0xfe]), 3), Some(vec![0, 1, 0xfe]));
    }

    /// P13: a login that never ends costs bounded memory (target.md recipe 30).
    #[test]
    fn text_is_gathered_up_to_a_limit() {
        let mut gathered = Gathered::default();
        for _ in 0..8 {
            assert_eq!(gathered.push(&[b'a'; 8192]), Ok(()));
            assert_eq!(gathered.take().len(), 8192);
        }
        assert_eq!(gathered.push(b"a"), Err(TextError::TooLong { len_max: 65536 }));
    }
}
