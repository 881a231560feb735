//! The sections of benches/README.md that commands write, each behind its own line.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};

use crate::command;

/// Prints a section, and puts it behind the line of its own unless `dry_run`, in place of what an earlier run wrote there.
///
/// # Errors
/// When benches/README.md has no such line.
pub(super) fn put(name: &str, text: &str, dry_run: bool) -> Result<()> {
    println!("\n{text}");
    if dry_run {
        return Ok(());
    }
    let path = command::repository().join("benches/README.md");
    let old = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    fs::write(&path, replaced(&old, name, text).with_context(|| path.display().to_string())?)?;
    Ok(())
}

fn replaced(old: &str, name: &str, text: &str) -> Result<String> {
    let line = format!("{BEGIN}{name} {END}");
    let (before, behind) = old.split_once(&line).with_context(|| format!("there is no line {line}"))?;
    let rest = behind.find("\n## ").map_or("", |at| &behind[at..]);
    Ok(format!("{before}{line}\n\n{}\n{rest}", text.trim_end()))
}

/// The machine and the day, as every section tells them.
///
/// # Errors
/// When the system does not tell.
pub(super) fn machine() -> Result<String> {
    let kernel = command::output(Command::new("uname").args(["-rm"]))?;
    let day = command::output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let processor = fs::read_to_string("/proc/cpuinfo")?;
    let model = processor.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches([' ', '\t', ':']);
    let cores = std::thread::available_parallelism()?;
    Ok(format!("{}, Linux {}, {cores} cores of {model}", day.trim(), kernel.trim()))
}

const BEGIN: &str = "<!-- cargo xtask bench ";
const END: &str = "writes what follows -->";

#[cfg(test)]
mod tests {
    use super::*;

    /// A section is replaced up to the next headline, and nothing else is.
    #[test]
    fn a_section_is_replaced() {
        let old =
            "# How fast\n\n<!-- cargo xtask bench one writes what follows -->\n\nold\n\n## Two\n\nkept\n";
        let new = replaced(old, "one", "new\n").unwrap();
        assert_eq!(new, old.replace("old", "new"));
        assert_eq!(replaced(&new, "one", "new").unwrap(), new);
        assert!(replaced(old, "two", "new").is_err());
    }
}
