//! Series collected by name, and written with the prometheus crate.

use std::collections::BTreeMap;

use prometheus::{
    TextEncoder,
    proto::{Bucket, Counter, Gauge, Histogram as Sample, LabelPair, Metric, MetricFamily, MetricType},
};

use super::latency::{Histogram, bounds};

/// Labels of a series: names and values.
pub(super) type Labels<'l> = [(&'l str, String)];

/// What kind of series it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// The series of a scrape, by name.
#[derive(Default)]
pub(super) struct Families(BTreeMap<String, MetricFamily>);

impl Families {
    /// Adds a value.
    pub(super) fn add(&mut self, kind: Kind, name: &str, help: &str, labels: &Labels<'_>, value: f64) {
        let mut metric = labelled(labels);
        let kind = match kind {
            Kind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
                MetricType::COUNTER
            }
            Kind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
                MetricType::GAUGE
            }
        };
        self.push(kind, name, help, metric);
    }

    /// Adds a truth value: 1 or 0.
    pub(super) fn truth(&mut self, name: &str, help: &str, labels: &Labels<'_>, truth: bool) {
        self.add(Kind::Gauge, name, help, labels, f64::from(u8::from(truth)));
    }

    /// Adds one state of several: its name is the value of the label `state`.
    pub(super) fn state(&mut self, name: &str, help: &str, labels: &Labels<'_>, state: &str, truth: bool) {
        let labels: Vec<_> = labels.iter().cloned().chain([("state", state.to_owned())]).collect();
        self.truth(name, help, &labels, truth);
    }

    /// Adds a histogram, in seconds.
    pub(super) fn histogram(&mut self, name: &str, help: &str, labels: &Labels<'_>, histogram: &Histogram) {
        let (cumulative, nanos) = histogram.read();
        let bucket = |(bound, count): (u64, &u64)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(float(bound) / NANOS);
            bucket.set_cumulative_count(*count);
            bucket
        };
        let mut sample = Sample::default();
        sample.set_sample_count(cumulative.last().copied().unwrap_or_default());
        sample.set_sample_sum(float(nanos) / NANOS);
        sample.set_bucket(bounds().zip(&cumulative).map(bucket).collect());
        let mut metric = labelled(labels);
        metric.set_histogram(sample);
        self.push(MetricType::HISTOGRAM, name, help, metric);
    }

    /// The text of all of them.
    pub(super) fn encode(self) -> String {
        let families: Vec<MetricFamily> = self.0.into_values().collect();
        TextEncoder::new().encode_to_string(&families).expect("each family has a name and a series")
    }

    fn push(&mut self, kind: MetricType, name: &str, help: &str, metric: Metric) {
        let family = self.0.entry(name.to_owned()).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            family
        });
        family.mut_metric().push(metric);
    }
}

/// The nearest float. Above 2^53, which no counter of bytes or nanoseconds reaches in years, it is not the same.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has floats only")]
pub(super) const fn float(count: u64) -> f64 {
    count as f64
}

fn labelled(labels: &Labels<'_>) -> Metric {
    let pair = |(name, value): &(&str, String)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value(value.clone());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

const NANOS: f64 = 1e9;
