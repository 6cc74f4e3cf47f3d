//! The commands, by what they are about.

mod account;
mod audit;
mod bills;
mod dev;
mod disks;
mod doctor;
mod edges;
mod manual;
mod people;
mod volumes;

use crate::{
    arguments::{Arguments, Command, Sure, Wait},
    failure::{Exit, Failure},
    screen::{Screen, field, note, rows},
    session::Session,
};
use serde_json::Value;
use std::{
    io::IsTerminal as _,
    path::PathBuf,
    time::{Duration, Instant},
};

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

    /// Shows one thing: a line for each member.
    pub(crate) fn show_one(&self, value: &Value) -> Result<(), Failure> {
        self.screen.show(value, |value| {
            let members = value.as_object().into_iter().flatten();
            let names: Vec<(String, String)> = members
                .map(|(name, _)| (name.clone(), field(value, name)))
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

/// Waits until an operation is done, and says how far it is. Undone work is a failure.
pub(crate) async fn wait_for(session: &Session, id: &str, wait: &Wait) -> Result<Value, Failure> {
    let began = Instant::now();
    let mut seen = String::new();
    loop {
        let operation = session.get(&format!("operations/{id}")).await?.body;
        match operation["state"].as_str() {
            Some("running") => {}
            Some("undone") => {
                return Err(Failure::new(
                    Exit::Conflict,
                    format!(
                        "{} was undone: {}",
                        field(&operation, "kind"),
                        field(&operation, "failure")
                    ),
                ));
            }
            _ => return Ok(operation),
        }
        let now = format!(
            "{} of {}: step {}",
            field(&operation, "kind"),
            field(&operation, "target"),
            field(&operation, "steps_done")
        );
        if now != seen {
            note(&now);
            seen = now;
        }
        if began.elapsed() > Duration::from_secs(wait.timeout) {
            return Err(
                Failure::new(Exit::Unavailable, format!("{id} is still running; it goes on"))
                    .next("wait longer with --timeout; repeating the command does no harm"),
            );
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Shows work of several steps, after waiting for its end if asked to. Undone work is a failure.
pub(crate) async fn finish(
    context: &Context,
    session: &Session,
    change: Value,
    wait: &Wait,
) -> Result<(), Failure> {
    let operation = if wait.wait {
        wait_for(session, &field(&change, "operation.id"), wait).await?
    } else {
        change["operation"].clone()
    };
    let mut change = change;
    change["operation"] = operation;
    context.screen.show(&change, |change| {
        format!(
            "{} {}  {}\n",
            field(change, "operation.kind"),
            field(change, "operation.target"),
            field(change, "operation.state")
        )
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
        Command::Logout { revoke } => account::log_out(&context, revoke).await,
        Command::Whoami => account::who_am_i(&context).await,
        Command::Volume(volume) => volumes::run(&context, volume).await,
        Command::Snapshot(snapshot) => volumes::snapshot(&context, snapshot).await,
        Command::Edge(edge) => edges::run(&context, edge).await,
        Command::Disk(disk) => disks::run(&context, disk).await,
        Command::Node(node) => disks::node(&context, node).await,
        Command::Usage(month) => bills::usage(&context, month).await,
        Command::Cost(month) => bills::cost(&context, month).await,
        Command::Invoice(invoice) => bills::invoice(&context, invoice).await,
        Command::Budget(budget) => bills::budget(&context, budget).await,
        Command::Key(key) => people::key(&context, key).await,
        Command::Member(member) => people::member(&context, member).await,
        Command::Audit(what) => audit::run(&context, what).await,
        Command::Doctor { bundle } => doctor::run(&context, bundle.as_deref()).await,
        Command::Dev { arguments } => dev::run(&arguments),
        Command::Completions { shell } => manual::completions(&context, shell),
        Command::Man { directory } => manual::write(&context, &directory),
    }
}
