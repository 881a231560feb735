//! The report: medians of the runs, ratios, the machine. Markdown for people, JSON for machines.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::Result;
use serde_json::json;

use super::{
    Contender, Plan,
    client::{Job, Measured},
    section,
};
use crate::command;

/// Everything measured so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    raw: BTreeMap<Job, f64>,
    runs: BTreeMap<Job, BTreeMap<&'static str, Vec<Measured>>>,
}

impl Report {
    /// Notes what the file itself does.
    pub(super) fn raw(&mut self, job: Job, iops: f64) {
        self.raw.insert(job, iops);
    }

    /// Notes a run.
    pub(super) fn add(&mut self, job: Job, contender: &'static str, measured: Measured) {
        self.runs.entry(job).or_default().entry(contender).or_default().push(measured);
    }

    /// The section of benches/README.md.
    pub(super) fn markdown(&self, plan: &Plan) -> Result<String> {
        let mut text = String::new();
        writeln!(
            text,
            "{}, {} runs of {} s each, in turn; medians.\n",
            section::machine()?,
            plan.pairs,
            plan.seconds
        )?;
        writeln!(
            text,
            "| work | contender | IOPS | p50 us | p99 us | server CPU us per I/O | evenkeel / this | of the raw file |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|---|---|")?;
        for (job, contenders) in &self.runs {
            let ours = contenders.get(Contender::Evenkeel.name()).map(|runs| median(runs, |run| run.iops));
            for (name, runs) in contenders {
                let iops = median(runs, |run| run.iops);
                let ratio = ours.map(|ours| format!("{:.2}", ours / iops)).unwrap_or_default();
                let raw = self.raw.get(job).map(|raw| format!("{:.2}", iops / raw)).unwrap_or_default();
                writeln!(
                    text,
                    "| {} | {name} | {iops:.0} | {:.0} | {:.0} | {:.1} | {ratio} | {raw} |",
                    job.name(),
                    median(runs, |run| f64::from(run.median_us)),
                    median(runs, |run| f64::from(run.p99_us)),
                    median(runs, |run| run.cpu_us),
                )?;
            }
        }
        Ok(text)
    }

    /// Puts every run into benches/latest.json.
    pub(super) fn write(&self) -> Result<()> {
        let path = command::repository().join("benches/latest.json");
        Ok(fs::write(path, serde_json::to_string_pretty(&self.json()?)? + "\n")?)
    }

    fn json(&self) -> Result<serde_json::Value> {
        let mut rows = Vec::new();
        for (job, contenders) in &self.runs {
            for (contender, runs) in contenders {
                let runs: Vec<_> = runs
                    .iter()
                    .map(|run| json!({ "iops": run.iops, "p50_us": run.median_us, "p99_us": run.p99_us, "cpu_us": run.cpu_us }))
                    .collect();
                rows.push(json!({ "work": job.name(), "contender": contender, "raw_iops": self.raw.get(job), "runs": runs }));
            }
        }
        Ok(json!({ "machine": section::machine()?, "rows": rows }))
    }
}

/// The median of one figure of the runs.
fn median(runs: &[Measured], figure: fn(&Measured) -> f64) -> f64 {
    let mut figures: Vec<_> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}
