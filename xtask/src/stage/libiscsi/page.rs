//! `docs/libiscsi.md`: what the suite came to, and the reason of each test that did not pass.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::Result;

use super::{Verdict, Verdicts, counts};
use crate::command;

/// Writes the page.
pub(super) fn write(verdicts: &Verdicts) -> Result<()> {
    let dir = command::repository().join("docs");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("libiscsi.md"), text(verdicts)?)?;
    Ok(())
}

fn text(verdicts: &Verdicts) -> Result<String> {
    let mut text = String::from(HEADING);
    writeln!(text, "{} of {} tests.\n", counts(verdicts), verdicts.len())?;
    text.push_str("## Skipped\n\n| reason given by the suite | tests |\n|---|---|\n");
    let mut by_reason = BTreeMap::<&str, Vec<&str>>::new();
    for (name, verdict) in verdicts {
        if let Verdict::Skip(reason) = verdict {
            by_reason.entry(reason).or_default().push(name);
        }
    }
    for (reason, names) in by_reason {
        writeln!(text, "| {} | {} |", reason.replace('|', "\\|"), names.join(", "))?;
    }
    text.push_str("\n## Failed\n\n");
    for (name, verdict) in
        verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Fail(_) | Verdict::Hang))
    {
        writeln!(text, "- {name} ({}); see `tests/initiators/libiscsi.expected`", verdict.word())?;
    }
    Ok(text)
}

const HEADING: &str = "\
# libiscsi's conformance suite

`cargo xtask test libiscsi` runs every test of Debian's `iscsi-test-cu` with `--dataloss --allow-sanitize`, each
against a target that nobody has touched. `cargo xtask test libiscsi --write` wrote this page.

";

#[cfg(test)]
mod tests {
    use super::*;

    /// Each skip stands on the page with its reason.
    #[test]
    fn skips_are_listed() {
        let skip = |reason: &str| Verdict::Skip(reason.into());
        let verdicts: Verdicts =
            [("A.One", skip("no medium")), ("A.Two", skip("no medium")), ("A.Three", Verdict::Pass)]
                .map(|(name, verdict)| (name.to_owned(), verdict))
                .into();
        let page = text(&verdicts).unwrap();
        assert!(page.contains("| no medium | A.One, A.Two |"), "{page}");
        assert!(page.contains("1 pass, 0 fail, 0 hang, 2 skip of 3 tests."), "{page}");
    }
}
