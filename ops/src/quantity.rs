//! Sizes and times as operators write them: `512`, `64KiB`, `10GiB`; `500ms`, `10s`. Exact, or refused.

use std::time::Duration;

use nom::{IResult, Parser, bytes::complete::take_while1, combinator::rest};
use thiserror::Error;

/// Why a size or a time was not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// It does not start with a digit.
    #[error("`{text}` does not start with a number")]
    NoNumber {
        /// As written.
        text: String,
    },
    /// The number has a fraction.
    #[error("`{text}` has a fraction, and only whole numbers are exact")]
    Fraction {
        /// As written.
        text: String,
    },
    /// The unit is not one of ours.
    #[error("`{unit}` is not a unit here; {instead}")]
    Unit {
        /// As written.
        unit: String,
        /// What to write.
        instead: String,
    },
    /// The quantity does not fit 64 bits.
    #[error("`{text}` is too large")]
    TooLarge {
        /// As written.
        text: String,
    },
}

/// The bytes of a size: a number, or a number and `KiB`, `MiB`, `GiB`, `TiB` or `PiB`.
///
/// # Errors
/// Anything else, with what to write instead.
pub fn size(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text)?;
    let shift = match unit {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        "PiB" => 50,
        _ => return Err(QuantityError::Unit { unit: unit.to_owned(), instead: size_instead(number, unit) }),
    };
    number.checked_mul(1 << shift).ok_or_else(|| QuantityError::TooLarge { text: text.to_owned() })
}

/// A time: a number and `ms`, `s`, `min` or `h`.
///
/// # Errors
/// Anything else, with what to write instead.
pub fn time(text: &str) -> Result<Duration, QuantityError> {
    let (number, unit) = split(text)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(QuantityError::Unit { unit: unit.to_owned(), instead: time_instead(number, unit) }),
    };
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| QuantityError::TooLarge { text: text.to_owned() })
}

/// A size in the largest unit that expresses it exactly; [`size`] reads it back.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let steps = if bytes == 0 { 0 } else { (bytes.trailing_zeros() / 10).min(5) };
    format!("{}{}", bytes >> (10 * steps), UNITS[steps as usize])
}

/// A time of whole milliseconds in the largest unit that expresses it exactly; [`time`] reads it back.
#[must_use]
pub fn show_time(time: Duration) -> String {
    let millis = time.as_millis();
    match millis {
        0 => "0s".to_owned(),
        _ if millis.is_multiple_of(3_600_000) => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!("{}min", millis / 60_000),
        _ if millis.is_multiple_of(1000) => format!("{}s", millis / 1000),
        _ => format!("{millis}ms"),
    }
}

fn split(text: &str) -> Result<(u64, &str), QuantityError> {
    let parsed: IResult<&str, (&str, &str)> = (take_while1(|c: char| c.is_ascii_digit()), rest).parse(text);
    let (_, (digits, unit)) = parsed.map_err(|_| QuantityError::NoNumber { text: text.to_owned() })?;
    if unit.starts_with(['.', ',']) {
        return Err(QuantityError::Fraction { text: text.to_owned() });
    }
    let number = digits.parse().map_err(|_| QuantityError::TooLarge { text: text.to_owned() })?;
    Ok((number, unit))
}

fn size_instead(number: u64, unit: &str) -> String {
    let binary = match unit.trim().to_ascii_lowercase().as_str() {
        "b" | "byte" | "bytes" => return format!("bytes have none: write `{number}`"),
        "k" | "kb" | "kib" => "KiB",
        "m" | "mb" | "mib" => "MiB",
        "g" | "gb" | "gib" => "GiB",
        "t" | "tb" | "tib" => "TiB",
        "p" | "pb" | "pib" => "PiB",
        "s" => return format!("write bytes: {number} sectors are `{}`", u128::from(number) * 512),
        _ => return "the units are KiB, MiB, GiB, TiB and PiB".to_owned(),
    };
    format!("write `{number}{binary}`")
}

fn time_instead(number: u64, unit: &str) -> String {
    match unit.trim().to_ascii_lowercase().as_str() {
        "" => format!("a time needs its unit: write `{number}s` or `{number}ms`"),
        "sec" | "secs" | "second" | "seconds" | "s" => format!("write `{number}s`"),
        "m" | "mins" | "minute" | "minutes" | "min" => format!("write `{number}min`"),
        "msec" | "millis" | "milliseconds" | "ms" => format!("write `{number}ms`"),
        "hour" | "hours" | "h" => format!("write `{number}h`"),
        "d" | "day" | "days" => format!("write `{}h`", u128::from(number) * 24),
        _ => "the units are ms, s, min and h".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contract's spellings mean what they say.
    #[test]
    fn sizes_and_times_are_exact() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("10GiB"), Ok(10 << 30));
        assert_eq!(size("16383PiB"), Ok(16_383 << 50));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(time("2min"), Ok(Duration::from_mins(2)));
    }

    /// Whatever is refused is refused with the right form.
    #[test]
    fn a_wrong_form_names_the_right_one() {
        for (text, right) in [
            ("10G", "`10GiB`"),
            ("10gb", "`10GiB`"),
            ("10 MiB", "`10MiB`"),
            ("100B", "`100`"),
            ("8s", "`4096`"),
            ("1.5GiB", "whole numbers"),
            ("GiB", "number"),
            ("", "number"),
            ("-1", "number"),
            ("16384PiB", "too large"),
            ("99999999999999999999", "too large"),
            ("5xyz", "KiB, MiB"),
        ] {
            let error = size(text).expect_err(text).to_string();
            assert!(error.contains(right), "{text}: {error}");
        }
        for (text, right) in [
            ("60", "`60s`"),
            ("5m", "`5min`"),
            ("5sec", "`5s`"),
            ("1d", "`24h`"),
            ("0.5s", "whole numbers"),
            ("s", "number"),
            ("9999999999999999999h", "too large"),
            ("5 parsecs", "ms, s, min"),
        ] {
            let error = time(text).expect_err(text).to_string();
            assert!(error.contains(right), "{text}: {error}");
        }
    }

    /// What is shown reads back the same.
    #[test]
    fn shown_quantities_read_back() {
        for shift in 0..64 {
            for bytes in [1_u64 << shift, (1_u64 << shift) - 1, (1_u64 << shift) | 1] {
                assert_eq!(size(&show_size(bytes)), Ok(bytes), "{bytes}");
            }
        }
        for millis in [0, 1, 999, 1000, 1001, 59_000, 60_000, 61_000, 3_600_000, 7_200_000, 3_601_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(time(&show_time(duration)), Ok(duration), "{millis}");
        }
    }
}
