//! Fitness of the bucket: a probe object put, put again, read, listed and deleted under the volume's prefix, and what a large one takes.

use super::Subject;
use crate::finding::Finding;
use crate::{cloud_session::CredentialsFrom, config::Config, joined::is_joined, parts, report::size};
use firn_store::{ProbeError, Store, StoreError, StoreUrl};
use std::{sync::Arc, time::Duration};

const SUBJECT: &str = "bucket";
/// Above it whatever is not cached is felt.
const GET_SLOW: Duration = Duration::from_millis(500);
/// 8 Mbit/s: below it an office that works fills the journal.
const SLOW_BYTES_A_SECOND: f64 = 1e6;

pub async fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut asked: Vec<&StoreUrl> = Vec::new();
    for config in &subject.edge.volumes {
        // Credentials of the environment open one bucket as often as it is named.
        if asked.contains(&&config.volume.store) {
            continue;
        }
        asked.push(&config.volume.store);
        let is_service = config.volume.credentials == CredentialsFrom::Service;
        let of_volume = match config.volume.follow {
            _ if is_service && !is_joined(config) => vec![without_credentials(&config.volume.store)],
            Some(_) => reading(subject, config, "a volume that is followed is only read").await,
            // Another tenant's: the service's credentials add to the logs of this edge's own writers, of which there is none yet.
            None if is_service && config.volume.owner.is_some() => {
                reading(
                    subject,
                    config,
                    "what was granted is written in this edge's own logs only, and no probe is put",
                )
                .await
            }
            None => writing(subject, config).await,
        };
        let named = of_volume
            .into_iter()
            .map(|finding| finding.of(subject.name(config)));
        found.extend(named);
    }
    found
}

/// An edge that did not join yet has nothing to ask with.
fn without_credentials(url: &StoreUrl) -> Finding {
    Finding::not_seen(
        SUBJECT,
        format!(
            "{url}: its credentials come from the service, which this edge has not joined yet; check again after firn edge join"
        ),
    )
}

async fn open(subject: &Subject<'_>, config: &Config) -> Result<Arc<dyn Store>, Finding> {
    let opened = parts::bare_store(subject.env, config).await;
    opened.map_err(|failure| Finding::fails(SUBJECT, failure, ""))
}

/// Of whom there may be no right to put a probe.
async fn reading(subject: &Subject<'_>, config: &Config, why: &str) -> Vec<Finding> {
    let store = match open(subject, config).await {
        Ok(store) => store,
        Err(finding) => return vec![finding],
    };
    let url = &config.volume.store;
    let began = subject.env.now();
    let listed = subject.in_time(store.list("probe/", None)).await;
    let took = subject.env.now().since(began);
    vec![match listed {
        Ok(Ok(_)) => Finding::fine(SUBJECT, format!("{url}: listed within {}; {why}", ms(took))),
        Ok(Err(error)) => refused(url, &error),
        Err(why) => silent(url, &why),
    }]
}

async fn writing(subject: &Subject<'_>, config: &Config) -> Vec<Finding> {
    let store = match open(subject, config).await {
        Ok(store) => store,
        Err(finding) => return vec![finding],
    };
    let url = &config.volume.store;
    let probed = subject.in_time(firn_store::probe(subject.env, &*store)).await;
    let report = match probed {
        Ok(Ok(report)) => report,
        Ok(Err(ProbeError::Failed { step, source })) => {
            let mut finding = refused(url, &source);
            finding.said = format!("{} (at {step})", finding.said);
            return vec![finding];
        }
        Ok(Err(unfit)) => return vec![Finding::fails(SUBJECT, format!("{url}: {unfit}"), "")],
        Err(why) => return vec![silent(url, &why)],
    };
    let took = report.took;
    let mut said = format!(
        "{url}: put {}, get {}, list {} (the first request {})",
        ms(took.put),
        ms(took.get),
        ms(took.list),
        ms(took.first_put)
    );
    match &report.left_behind {
        None => said.push_str(", deleted"),
        Some(key) => {
            said.push_str(&format!(
                "; these credentials may not delete, which is right beside a cleaner: {key} (32 bytes) stays"
            ));
        }
    }
    let finding = match took.get > GET_SLOW {
        true => Finding::hurts(
            SUBJECT,
            format!("{said}: whatever is not cached waits as long"),
            "use a region that is nearer, or a larger limits.disk_cache",
        ),
        false => Finding::fine(SUBJECT, said),
    };
    let finding = finding
        .figure("put_us", took.put.as_micros() as u64)
        .figure("get_us", took.get.as_micros() as u64)
        .figure("list_us", took.list.as_micros() as u64);
    let may_measure = report.left_behind.is_none() || subject.options.leave_behind;
    let throughput = match may_measure {
        true => throughput(subject, config, &*store).await,
        false => Finding::not_seen(
            SUBJECT,
            format!(
                "{url}: throughput is not measured, since the {} that it takes would stay; --leave-behind measures it all the same",
                size(config.limits.segment.0)
            ),
        ),
    };
    vec![finding, throughput]
}

async fn throughput(subject: &Subject<'_>, config: &Config, store: &dyn Store) -> Finding {
    let url = &config.volume.store;
    let bytes = config.limits.segment.0;
    let measured = subject
        .in_time(firn_store::measure(subject.env, store, bytes))
        .await;
    let measured = match measured {
        Ok(Ok(measured)) => measured,
        // What is small went through.
        Ok(Err(ProbeError::Failed {
            source: StoreError::Unavailable { detail, .. },
            ..
        })) => return swallowed(url, bytes, &detail),
        Ok(Err(error)) => return Finding::fails(SUBJECT, format!("{url}: {error}"), ""),
        Err(why) => return swallowed(url, bytes, &why),
    };
    let rate = |took: Duration| measured.bytes as f64 / took.as_secs_f64().max(1e-6);
    let (up, down) = (rate(measured.put), rate(measured.get));
    let journal = config.limits.journal.0;
    let said = format!(
        "{url}: {} up at {:.1} MB/s, down at {:.1} MB/s, by one request each; a full journal ({}) would take {} to reach it",
        size(bytes),
        up / 1e6,
        down / 1e6,
        size(journal),
        crate::report::span((journal as f64 / up * 1e3) as u64)
    );
    let finding = match up.min(down) < SLOW_BYTES_A_SECOND {
        true => Finding::hurts(
            SUBJECT,
            format!("{said}: less than 8 Mbit/s"),
            "give the office a faster line, or a larger limits.journal for the hours in which much is written",
        ),
        false => Finding::fine(SUBJECT, said),
    };
    finding
        .figure("up_bytes_per_s", up as u64)
        .figure("down_bytes_per_s", down as u64)
}

fn swallowed(url: &StoreUrl, bytes: u64, why: &str) -> Finding {
    Finding::fails(
        SUBJECT,
        format!(
            "{url}: small objects go through, one of {} does not: {why}",
            size(bytes)
        ),
        "something on the way swallows full packets (path MTU): ip link set INTERFACE mtu 1400 and check again, and let ICMP through; or a proxy limits bodies",
    )
}

fn silent(url: &StoreUrl, why: &str) -> Finding {
    Finding::fails(
        SUBJECT,
        format!("{url}: {why}"),
        "check route and firewalls towards it",
    )
}

/// The words of a refusal say what to do.
fn refused(url: &StoreUrl, error: &StoreError) -> Finding {
    let to_do = match error {
        StoreError::Unavailable { .. } => {
            "check its address, the route and the firewalls on the way; then check again"
        }
        StoreError::NotFound { .. }
        | StoreError::AlreadyExists { .. }
        | StoreError::Denied { .. }
        | StoreError::Invalid { .. } => "",
    };
    Finding::fails(SUBJECT, format!("{url}: {error}"), to_do)
}

fn ms(took: Duration) -> String {
    format!("{:.1} ms", took.as_secs_f64() * 1e3)
}
