//! The figures of one scrape by family: those of several volumes stand in one family, told apart by the label `volume`.

use firn_metrics::{Exposition, Value};

type Labels = Vec<(String, String)>;

enum Kind {
    Gauge,
    Counter,
    Info,
}

struct Family {
    name: String,
    help: String,
    kind: Kind,
    samples: Vec<(Labels, Value)>,
}

/// See the module.
#[derive(Default)]
pub struct Families {
    families: Vec<Family>,
    volume: Option<String>,
}

impl Families {
    /// What follows is of this volume; none: it is told without one.
    pub fn of_volume(&mut self, name: Option<&str>) {
        self.volume = name.map(str::to_owned);
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl Into<Value>) {
        self.add(name, help, Kind::Gauge, [([], value)]);
    }

    pub fn counter(&mut self, name: &str, help: &str, value: impl Into<Value>) {
        self.add(name, help, Kind::Counter, [([], value)]);
    }

    pub fn gauges<'a, const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, &'a str); N], V)>,
    ) {
        self.add(name, help, Kind::Gauge, samples);
    }

    pub fn counters<'a, const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, &'a str); N], V)>,
    ) {
        self.add(name, help, Kind::Counter, samples);
    }

    pub fn info<const N: usize>(&mut self, name: &str, help: &str, labels: [(&'static str, &str); N]) {
        self.add(name, help, Kind::Info, [(labels, true)]);
    }

    fn add<'a, const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        kind: Kind,
        samples: impl IntoIterator<Item = ([(&'static str, &'a str); N], V)>,
    ) {
        let volume = self.volume.clone();
        let labelled = |(labels, value): ([(&'static str, &str); N], V)| {
            let mut labels: Labels = labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            if let Some(volume) = &volume
                && labels.iter().all(|(name, _)| name != "volume")
            {
                labels.insert(0, ("volume".to_owned(), volume.clone()));
            }
            (labels, value.into())
        };
        let samples = samples.into_iter().map(labelled);
        match self.families.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.extend(samples),
            None => self.families.push(Family {
                name: name.to_owned(),
                help: help.to_owned(),
                kind,
                samples: samples.collect(),
            }),
        }
    }

    /// Tells them all.
    pub fn expose(self, out: &mut Exposition<'_>) {
        for Family {
            name,
            help,
            kind,
            samples,
        } in self.families
        {
            let is_one = matches!(&samples[..], [(labels, _)] if labels.is_empty());
            match kind {
                Kind::Gauge | Kind::Counter if is_one => {
                    // Of one volume: without the braces of a family of many.
                    for (_, value) in samples.into_iter().take(1) {
                        match kind {
                            Kind::Counter => out.counter(&name, &help, value),
                            Kind::Gauge | Kind::Info => out.gauge(&name, &help, value),
                        }
                    }
                }
                Kind::Gauge => out.gauges(&name, &help, samples),
                Kind::Counter => out.counters(&name, &help, samples),
                Kind::Info => {
                    for (labels, _) in samples {
                        out.info(&name, &help, labels);
                    }
                }
            }
        }
    }
}
