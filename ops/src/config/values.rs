//! Reading one value of the file: text, sizes, times, numbers, words.

use std::{path::PathBuf, time::Duration};

use toml::de::DeValue;

use super::{model::Address, names};
use crate::quantity;

/// What is wrong with a value, and what to write instead.
pub(super) struct Fault {
    pub(super) message: String,
    pub(super) help: String,
}

impl Fault {
    pub(super) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into() }
    }
}

/// Text as it stands.
pub(super) fn text(value: &DeValue<'_>) -> Result<String, Fault> {
    match value {
        DeValue::String(text) if !text.is_empty() && !text.contains('\0') => Ok(text.clone().into_owned()),
        DeValue::String(_) => Err(Fault::new("this is empty or has a NUL in it", "write some text")),
        other => Err(unfit("a string", other, "write it in quotes")),
    }
}

/// A path; those that are relative are taken from `base`.
pub(super) fn path(base: &std::path::Path) -> impl Fn(&DeValue<'_>) -> Result<PathBuf, Fault> {
    move |value| text(value).map(|text| base.join(text))
}

/// A name that `check` accepts.
pub(super) fn named(
    check: impl Fn(&str) -> Result<(), Fault>,
) -> impl Fn(&DeValue<'_>) -> Result<String, Fault> {
    move |value| {
        let name = text(value)?;
        check(&name).map(|()| name)
    }
}

/// A size: a whole number of bytes, or a string with a unit.
pub(super) fn size(value: &DeValue<'_>) -> Result<u64, Fault> {
    match value {
        DeValue::Integer(_) => whole(0, u64::MAX)(value),
        DeValue::String(text) => {
            quantity::size(text).map_err(|error| Fault::new("this is not a size", error.to_string()))
        }
        other => Err(unfit("a size", other, "write bytes, or a string with a unit: \"10GiB\"")),
    }
}

/// A size of at most `max`, which fits 32 bits.
pub(super) fn small_size(max: u32) -> impl Fn(&DeValue<'_>) -> Result<u32, Fault> {
    move |value| {
        let bytes = size(value)?;
        u32::try_from(bytes).ok().filter(|&bytes| bytes <= max).ok_or_else(|| {
            let max = quantity::show_size(u64::from(max));
            Fault::new(format!("{bytes} bytes are too many"), format!("write at most \"{max}\""))
        })
    }
}

/// A time from `min` to `max`.
pub(super) fn time(min: Duration, max: Duration) -> impl Fn(&DeValue<'_>) -> Result<Duration, Fault> {
    move |value| {
        let time = match value {
            DeValue::String(text) => {
                quantity::time(text).map_err(|error| Fault::new("this is not a time", error.to_string()))?
            }
            DeValue::Integer(number) => {
                let help = format!("write it with its unit: \"{number}s\" or \"{number}ms\"");
                return Err(Fault::new("a time needs its unit", help));
            }
            other => return Err(unfit("a time", other, "write a string with a unit: \"500ms\", \"10s\"")),
        };
        if (min..=max).contains(&time) {
            return Ok(time);
        }
        let [shown, min, max] = [time, min, max].map(quantity::show_time);
        Err(Fault::new(
            format!("{shown} is out of range"),
            format!("write a time from \"{min}\" to \"{max}\""),
        ))
    }
}

/// A whole number from `min` to `max`.
pub(super) fn whole(min: u64, max: u64) -> impl Fn(&DeValue<'_>) -> Result<u64, Fault> {
    move |value| {
        let help = format!("write a whole number from {min} to {max}");
        let DeValue::Integer(number) = value else { return Err(unfit("a whole number", value, &help)) };
        let parsed = u64::from_str_radix(number.as_str(), number.radix()).ok();
        parsed
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| Fault::new(format!("{number} is out of range"), help))
    }
}

/// `true` or `false`.
pub(super) fn truth(value: &DeValue<'_>) -> Result<bool, Fault> {
    match value {
        DeValue::Boolean(truth) => Ok(*truth),
        DeValue::String(text) if text == "yes" || text == "no" => {
            let right = text == "yes";
            Err(Fault::new(
                format!("\"{text}\" is DRBD's spelling"),
                format!("write {right}, without quotes"),
            ))
        }
        other => Err(unfit("a truth value", other, "write true or false, without quotes")),
    }
}

/// One of the words of `choices`.
pub(super) fn choice<T: Copy>(choices: &[(&'static str, T)]) -> impl Fn(&DeValue<'_>) -> Result<T, Fault> {
    move |value| {
        let words: Vec<String> = choices.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let help = format!("write {}", words.join(" or "));
        let DeValue::String(text) = value else { return Err(unfit("a word", value, &help)) };
        let chosen = choices.iter().find(|(word, _)| word == text).map(|&(_, choice)| choice);
        chosen.ok_or_else(|| Fault::new(format!("\"{text}\" is not one of the choices"), help))
    }
}

/// An address with its port.
pub(super) fn address(value: &DeValue<'_>) -> Result<Address, Fault> {
    match value {
        DeValue::String(text) => names::address(text),
        other => Err(unfit(
            "an address",
            other,
            "write \"192.0.2.1:3260\", \"[2001:db8::1]:3260\" or \"host:3260\"",
        )),
    }
}

fn unfit(wanted: &str, found: &DeValue<'_>, help: &str) -> Fault {
    let article = if matches!(found, DeValue::Integer(_) | DeValue::Array(_)) { "an" } else { "a" };
    Fault::new(format!("{wanted} is wanted here, not {article} {}", found.type_str()), help)
}
