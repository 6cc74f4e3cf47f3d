//! Fitness of the second store: that it takes, lists and gives, and that it is not the first under another name.

use super::Subject;
use crate::{
    config::{Config, SecondSection},
    finding::Finding,
    parts,
};
use firn_mirror::{AliasError, check_not_an_alias};
use firn_store::{ProbeError, StoreUrl};
use firn_store_cloud::Credentials;

const SUBJECT: &str = "second store";
const UPLOADS_GO_ON: &str = "the edge serves all the same and copies nothing meanwhile";

pub async fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut asked: Vec<(&StoreUrl, &StoreUrl)> = Vec::new();
    for config in &subject.edge.volumes {
        let Some(section) = &config.second else { continue };
        let pair = (&config.volume.store, &section.store);
        // Of volumes that share both, once.
        if !asked.contains(&pair) {
            asked.push(pair);
            found.push(of_volume(subject, config, section).await.of(subject.name(config)));
        }
    }
    found
}

async fn of_volume(subject: &Subject<'_>, config: &Config, section: &SecondSection) -> Finding {
    let (env, url) = (subject.env, &section.store);
    let second = match firn_store_cloud::open(env, url, &Credentials::Environment).await {
        Ok(second) => second,
        Err(error) => return Finding::hurts(SUBJECT, error, UPLOADS_GO_ON),
    };
    if config.volume.follow.is_some() {
        return match subject.in_time(second.list("probe/", None)).await {
            Ok(Ok(_)) => Finding::fine(
                SUBJECT,
                format!("{url}: listed; a volume that is followed only reads it"),
            ),
            Ok(Err(error)) => Finding::hurts(SUBJECT, format!("{url}: {error}"), UPLOADS_GO_ON),
            Err(why) => Finding::hurts(SUBJECT, format!("{url}: {why}"), UPLOADS_GO_ON),
        };
    }
    match subject.in_time(firn_store::probe(env, &*second)).await {
        Ok(Ok(_)) => {}
        Ok(Err(unfit @ (ProbeError::NotCreateOnly | ProbeError::Altered { .. }))) => {
            return Finding::fails(SUBJECT, format!("{url}: {unfit}"), "");
        }
        Ok(Err(error)) => return Finding::hurts(SUBJECT, format!("{url}: {error}"), UPLOADS_GO_ON),
        Err(why) => return Finding::hurts(SUBJECT, format!("{url}: {why}"), UPLOADS_GO_ON),
    }
    let first = match parts::bare_store(env, config).await {
        Ok(first) => first,
        Err(failure) => return Finding::not_seen(SUBJECT, format!("{url}: {failure}")),
    };
    match subject.in_time(check_not_an_alias(env, &*first, &*second)).await {
        Ok(Ok(())) => Finding::fine(
            SUBJECT,
            format!("{url}: put, read, listed; another store than the first"),
        ),
        Ok(Err(alias @ AliasError::Alias)) => Finding::fails(SUBJECT, format!("{url}: {alias}"), ""),
        Ok(Err(error @ AliasError::Unasked(_))) => Finding::not_seen(SUBJECT, format!("{url}: {error}")),
        Err(why) => Finding::not_seen(SUBJECT, format!("{url}: {why}")),
    }
}
