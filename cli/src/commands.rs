//! The commands, by what they are about.

mod account;
mod attach;
mod audit;
mod audit_reports;
mod beside;
mod bills;
mod dev;
mod disk_snapshots;
mod disks;
mod doctor;
mod edge_keys;
mod edge_state;
mod edges;
mod figures;
mod install;
mod logs;
mod manual;
mod mount;
mod open;
mod people;
mod recovery;
mod rekey;
mod share;
mod shared_costs;
mod status;
mod volumes;

use crate::{
    arguments::{Arguments, Command, Sure, Wait},
    failure::{Exit, Failure},
    screen::{Screen, field, label, note, rows, told},
    session::Session,
};
use serde_json::Value;
use std::{
    io::IsTerminal as _,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Members that people look for first.
const FIRST: [&str; 3] = ["name", "state", "id"];
/// Members that only programs read: keys and signed bytes.
const FOR_PROGRAMS: [&str; 3] = ["binding", "certificate_request", "recipient_key"];
/// Between two looks at work that is waited for.
const LOOK_PERIOD: Duration = Duration::from_millis(300);

/// What every command has at hand.
pub(crate) struct Context {
    pub(crate) screen: Screen,
    pub(crate) profile: Option<PathBuf>,
}

impl Context {
    pub(crate) async fn session(&self) -> Result<Session, Failure> {
        Session::open(self.profile.clone()).await
    }

    /// Shows a list: columns as (heading, member of the item).
    pub(crate) fn show_list(&self, items: Vec<Value>, columns: &[(&str, &str)]) -> Result<(), Failure> {
        let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
        let paths: Vec<&str> = columns.iter().map(|(_, path)| *path).collect();
        self.screen.show(&Value::Array(items), |value| {
            let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
            self.screen.table(&heads, &[], &rows(items, &paths))
        })
    }

    /// Shows one thing: a line for each member that people read. Programs get all of it.
    pub(crate) fn show_one(&self, value: &Value) -> Result<(), Failure> {
        self.screen.show(value, |value| {
            let members = value.as_object().into_iter().flatten();
            let mut members: Vec<&str> = members.map(|(name, _)| name.as_str()).collect();
            // Stable: what does not come first stays as it was.
            members.sort_by_key(|name| {
                FIRST
                    .iter()
                    .position(|first| first == name)
                    .unwrap_or(FIRST.len())
            });
            let names: Vec<(String, String)> = members
                .into_iter()
                .filter(|name| !FOR_PROGRAMS.contains(name))
                .map(|name| (label(name), told(value, name)))
                .filter(|(_, text)| !text.is_empty())
                .collect();
            let width = names.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            names
                .iter()
                .map(|(name, text)| format!("{name:<width$}  {text}\n"))
                .collect()
        })
    }
}

/// Asks before something that cannot be taken back.
pub(crate) fn ask(sure: &Sure, what: &str) -> Result<(), Failure> {
    if sure.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(
            Failure::usage(format!("{what}: nobody is there to ask")).next("give --yes if it is meant")
        );
    }
    note(&format!("{what}. Type yes to go on:"));
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::usage(format!("standard input: {error}")))?;
    if answer.trim() == "yes" {
        Ok(())
    } else {
        Err(Failure::usage("nothing was done"))
    }
}

/// Waits until an operation is done, and says what it is doing to what is called `name`. Undone work is a failure.
pub(crate) async fn wait_for(session: &Session, id: &str, name: &str, wait: &Wait) -> Result<Value, Failure> {
    let began = Instant::now();
    let mut said = String::new();
    loop {
        let operation = session.get(&format!("operations/{id}")).await?.body;
        match operation["state"].as_str() {
            Some("running") => {}
            Some("undone") => {
                return Err(Failure::new(
                    Exit::Conflict,
                    format!(
                        "{} of {name} was undone: {}",
                        field(&operation, "kind"),
                        field(&operation, "failure")
                    ),
                )
                .next("all is as it was before; when the cause is gone, repeat the command"));
            }
            _ => return Ok(operation),
        }
        let doing = format!(
            "{} of {name}: {}",
            field(&operation, "kind"),
            field(&operation, "doing")
        );
        if doing != said {
            note(&doing);
            said = doing;
        }
        if began.elapsed() > Duration::from_secs(wait.timeout) {
            return Err(
                Failure::new(Exit::Unavailable, format!("{said}; it goes on by itself"))
                    .next("wait longer with --timeout; repeating the command does no harm"),
            );
        }
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

/// Shows the thing that work of several steps was started on; if asked to, after waiting for its end. Undone work is a failure.
pub(crate) async fn finish(
    context: &Context,
    session: &Session,
    change: Value,
    kind: &str,
    wait: &Wait,
) -> Result<(), Failure> {
    let name = field(&change[kind], "name");
    let mut change = change;
    if wait.wait {
        change["operation"] = wait_for(session, &field(&change, "operation.id"), &name, wait).await?;
        // As it is now, and not as it was when the work began; nothing, if the work was to remove it.
        let path = format!("{kind}s/{}", field(&change[kind], "id"));
        change[kind] = match session.get(&path).await {
            Ok(found) => found.body,
            Err(failure) if failure.exit == Exit::NotFound => Value::Null,
            Err(failure) => return Err(failure),
        };
    }
    context.screen.show(&change, |change| {
        let state = match &change[kind] {
            Value::Null => "gone".to_owned(),
            thing => field(thing, "state"),
        };
        let mut text = format!("{kind} {name}: {state}\n");
        if change["operation"]["state"] == "running" {
            text.push_str(&format!(
                "{} goes on by itself; firn {kind} show {name} says how far it is\n",
                field(change, "operation.kind")
            ));
        }
        text
    })
}

pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let context = Context {
        screen: Screen::new(arguments.output),
        profile: arguments.profile,
    };
    match arguments.command {
        Command::Signup(signup) => account::sign_up(&context, signup).await,
        Command::Login(login) => account::log_in(&context, login).await,
        Command::Recover(recover) => recovery::recover(&context, recover).await,
        Command::Logout { revoke } => account::log_out(&context, revoke).await,
        Command::Whoami => account::who_am_i(&context).await,
        Command::Volume(volume) => volumes::run(&context, volume).await,
        Command::Snapshot(snapshot) => volumes::snapshot(&context, snapshot).await,
        Command::Edge(edge) => edges::run(&context, edge).await,
        Command::Share(what) => share::run(&context, what).await,
        Command::Mount(wanted) => mount::run(&context, wanted).await,
        Command::Disk(disk) => disks::run(&context, disk).await,
        Command::Node(node) => disks::node(&context, node).await,
        Command::Usage(month) => bills::usage(&context, month).await,
        Command::Cost(month) => bills::cost(&context, month).await,
        Command::Invoice(invoice) => bills::invoice(&context, invoice).await,
        Command::Budget(budget) => bills::budget(&context, budget).await,
        Command::Key(key) => people::key(&context, key).await,
        Command::Member(member) => people::member(&context, member).await,
        Command::Audit(what) => audit::run(&context, what).await,
        Command::Doctor { bundle, metrics } => doctor::run(&context, bundle.as_deref(), &metrics).await,
        Command::Dev { arguments } => dev::run(&arguments),
        Command::Status => status::run(&context).await,
        Command::Logs { last, of } => logs::run(&context, last, of.as_deref()).await,
        Command::Open { thing } => open::run(&context, &thing).await,
        Command::Config { authority } => account::config(&context, authority),
        Command::Completions { shell, install } => manual::completions(&context, shell, install),
        Command::Man { directory } => manual::write(&context, &directory),
    }
}
