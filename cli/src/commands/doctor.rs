//! A check-up: what is here, the way to the service, what the service says, and the figures of programs whose address is given. Every
//! check is tried, and each that fails says what to do. The bundle holds the same, and no secret: not the key, no token, no phrase, no join secret.

use super::{Context, audit, figures};
use crate::{
    failure::{Exit, Failure},
    http::Http,
    profile::{Profile, private_file},
    rings,
    screen::field,
    session::Session,
};
use jiff::{Timestamp, fmt::rfc2822};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

/// Replies name whole seconds and take time themselves; beyond this tokens begin to be refused.
const CLOCKS_APART_SECONDS_MAX: u64 = 30;

struct Report(Vec<Value>);

impl Report {
    fn note(&mut self, check: &str, outcome: &Result<String, Failure>) {
        let (state, text) = match outcome {
            Ok(text) => ("good", text.clone()),
            Err(failure) => ("bad", failure.to_string()),
        };
        self.0
            .push(json!({ "check": check, "state": state, "detail": text }));
    }
}

pub async fn run(context: &Context, bundle: Option<&Path>, metrics: &[String]) -> Result<(), Failure> {
    let mut report = Report(Vec::new());
    // An edge of no service is examined where nobody ever logged in.
    let untrusted = match metrics {
        [] => examine(context, &mut report).await,
        _ if profile_path(context).is_ok_and(|path| path.exists()) => examine(context, &mut report).await,
        _ => false,
    };
    for url in metrics {
        let judged = figures::judged(url).await;
        match judged {
            Ok(judged) if judged.wrong.is_empty() => report.note(&judged.of, &Ok(judged.to_string())),
            Ok(judged) => {
                for wrong in judged.wrong {
                    report.note(&judged.of, &Err(wrong));
                }
            }
            Err(failure) => report.note("metrics", &Err(failure)),
        }
    }
    let checks = Value::Array(report.0);
    let document = json!({
        "firn": env!("CARGO_PKG_VERSION"),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "checks": checks,
    });
    if let Some(path) = bundle {
        let text =
            serde_json::to_string_pretty(&document).map_err(|error| Failure::failed(error.to_string()))?;
        let mut file = private_file(path)?;
        file.write_all(text.as_bytes())
            .map_err(crate::failure::of_file(path))?;
    }
    context.screen.show(&document, |document| {
        let row = |check: &Value| {
            vec![
                field(check, "state"),
                field(check, "check"),
                check["detail"].as_str().unwrap_or_default().replace('\n', " "),
            ]
        };
        let rows: Vec<_> = document["checks"]
            .as_array()
            .into_iter()
            .flatten()
            .map(row)
            .collect();
        context.screen.table(&["state", "check", "detail"], &[], &rows)
    })?;
    let bad = checks
        .as_array()
        .into_iter()
        .flatten()
        .filter(|check| check["state"] == "bad")
        .count();
    match (bad, untrusted) {
        (0, _) => Ok(()),
        (_, true) => Err(Failure::untrusted(format!(
            "{bad} checks failed, one of them about trust"
        ))),
        (_, false) => Err(Failure::failed(format!("{bad} checks failed"))),
    }
}

fn profile_path(context: &Context) -> Result<PathBuf, Failure> {
    match &context.profile {
        Some(path) => Ok(path.clone()),
        None => Profile::default_path(),
    }
}

/// Runs the checks; says whether one failed that is about trust.
async fn examine(context: &Context, report: &mut Report) -> bool {
    let mut untrusted = false;
    let mut note = |report: &mut Report, check: &str, outcome: Result<String, Failure>| {
        untrusted |= matches!(&outcome, Err(failure) if failure.exit == Exit::Untrusted);
        report.note(check, &outcome);
        outcome.is_ok()
    };
    let profile = profile_path(context).and_then(|path| {
        let profile = Profile::load(&path)?;
        require_private(&path)?;
        Ok(profile)
    });
    let shown = profile
        .as_ref()
        .map(|profile| format!("tenant {} at {}", profile.tenant, profile.server));
    if !note(report, "profile", shown.map_err(Clone::clone)) {
        return untrusted;
    }
    let Ok(profile) = profile else { return untrusted };
    let answered = health(&profile).await;
    if !note(report, "service answers", answered) {
        return untrusted;
    }
    drop(profile);
    let session = context.session().await;
    let who = session.as_ref().map(|_| "the API key is accepted".to_owned());
    note(report, "log-in", who.map_err(Clone::clone));
    let Ok(mut session) = session else {
        return untrusted;
    };
    let tenant = session
        .tenant()
        .await
        .map(|_| "the service shows the pinned key".to_owned());
    note(report, "tenant key", tenant);
    let keys = key_rings(&mut session).await;
    note(report, "key rings", keys);
    let chain = audit::verify(&mut session).await;
    note(
        report,
        "audit log",
        chain.map(|(entries, _)| format!("{entries} entries, unbroken and signed")),
    );
    let quota = session.get("quota").await.map(|reply| room(&reply.body));
    note(report, "quota", quota);
    untrusted
}

#[cfg(unix)]
fn require_private(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path)
        .map_err(crate::failure::of_file(path))?
        .permissions()
        .mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(
        Failure::usage(format!("{} can be read by others", path.display())).next(format!(
            "run: chmod 600 {}   and revoke the key if somebody else used this machine",
            path.display()
        )),
    )
}

#[cfg(not(unix))]
fn require_private(_path: &Path) -> Result<(), Failure> {
    Ok(())
}

async fn health(profile: &Profile) -> Result<String, Failure> {
    let http = Http::new(&profile.server, profile.authority.as_deref())?;
    let reply = http.send(Method::GET, "/healthz", None, None, None).await?;
    let clocks = reply.date.as_deref().and_then(|date| rfc2822::parse(date).ok());
    let apart = clocks.map(|theirs| {
        theirs
            .timestamp()
            .as_second()
            .abs_diff(Timestamp::now().as_second())
    });
    let version = field(&reply.body, "version");
    match apart {
        // Certificates and tokens end at a time; so do recalls and leases.
        Some(seconds) if seconds > CLOCKS_APART_SECONDS_MAX => Err(Failure::failed(format!(
            "version {version}; its clock and this machine's are {seconds} s apart"
        ))
        .next("set this machine's clock: timedatectl status")),
        Some(_) => Ok(format!("version {version}, its clock agrees with this machine's")),
        None => Ok(format!("version {version}")),
    }
}

async fn key_rings(session: &mut Session) -> Result<String, Failure> {
    let (mut rings, mut without) = (0, 0);
    let volumes = session.list("volumes").await?;
    let hidden = rings::hidden(session, &volumes);
    if !hidden.is_empty() {
        return Err(Failure::untrusted(format!(
            "the service does not list {}, which was seen here before",
            hidden.join(", ")
        )));
    }
    for volume in volumes {
        if matches!(volume["state"].as_str(), Some("erasing" | "erased")) {
            continue;
        }
        match rings::fetch(session, &volume).await? {
            Some(_) => rings += 1,
            None => without += 1,
        }
    }
    Ok(format!(
        "{rings} signed by the pinned key and not older than before; {without} volumes without one"
    ))
}

fn room(quota: &Value) -> String {
    ["volumes", "edges", "disks", "nodes", "members", "keys"]
        .iter()
        .map(|name| format!("{name} {}/{}", quota["in_use"][*name], quota["quota"][*name]))
        .collect::<Vec<_>>()
        .join(", ")
}
