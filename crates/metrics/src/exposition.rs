//! From figures to text.

use crate::Value;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use std::fmt;

/// What a process exposes.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// Asks `figures` at each scrape; `prefix` and an underscore stand before each name.
    pub fn new(prefix: &str, figures: impl Fn(&mut Exposition<'_>) + Send + Sync + 'static) -> Self {
        let mut registry = Registry::with_prefix(prefix);
        registry.register_collector(Box::new(Figures(figures)));
        Self(registry)
    }

    /// The figures of now; [`CONTENT_TYPE`](crate::CONTENT_TYPE).
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(16 << 10);
        text::encode(&mut text, &self.0).expect("a string takes everything");
        text
    }
}

struct Figures<F>(F);

impl<F> fmt::Debug for Figures<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Figures")
    }
}

impl<F: Fn(&mut Exposition<'_>) + Send + Sync + 'static> Collector for Figures<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut exposition = Exposition {
            encoder,
            written: Ok(()),
        };
        self.0(&mut exposition);
        exposition.written
    }
}

/// Takes the figures of one scrape, family by family. Each family is told once.
#[derive(Debug)]
pub struct Exposition<'a> {
    encoder: DescriptorEncoder<'a>,
    /// What the first family that could not be written failed with.
    written: fmt::Result,
}

impl Exposition<'_> {
    /// What goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Into<Value>) {
        self.family(name, help, MetricType::Gauge, |mut family| {
            family.encode_gauge(&value.into())
        });
    }

    /// What only grows while the process lives.
    ///
    /// # Panics
    /// Unless the name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Into<Value>) {
        self.family(name, help, MetricType::Counter, |mut family| {
            count(&mut family, value.into())
        });
    }

    /// What goes up and down, by labels: names and values.
    pub fn gauges<L: EncodeLabelSet, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) {
        self.family(name, help, MetricType::Gauge, |mut family| {
            samples
                .into_iter()
                .try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value.into()))
        });
    }

    /// What only grows, by labels: names and values.
    ///
    /// # Panics
    /// Unless the name ends in `_total`.
    pub fn counters<L: EncodeLabelSet, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) {
        self.family(name, help, MetricType::Counter, |mut family| {
            samples
                .into_iter()
                .try_for_each(|(labels, value)| count(&mut family.encode_family(&labels)?, value.into()))
        });
    }

    /// What stays as it is while the process lives, in labels.
    ///
    /// # Panics
    /// Unless the name ends in `_info`.
    pub fn info(&mut self, name: &str, help: &str, labels: impl EncodeLabelSet) {
        self.family(name, help, MetricType::Info, |mut family| {
            family.encode_info(&labels)
        });
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        write: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
    ) {
        // The library writes these ends itself.
        let name = match kind {
            MetricType::Counter => name.strip_suffix("_total").expect("counters end in _total"),
            MetricType::Info => name.strip_suffix("_info").expect("infos end in _info"),
            _ => name,
        };
        let of_unit = |unit: Unit| {
            let name = name.strip_suffix(unit.as_str())?.strip_suffix('_')?;
            Some((name, unit))
        };
        let (name, unit) = match [Unit::Bytes, Unit::Seconds].into_iter().find_map(of_unit) {
            Some((name, unit)) => (name, Some(unit)),
            None => (name, None),
        };
        let family = self.encoder.encode_descriptor(name, help, unit.as_ref(), kind);
        self.written = self.written.and(family.and_then(write));
    }
}

fn count(encoder: &mut MetricEncoder<'_>, value: Value) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
}
