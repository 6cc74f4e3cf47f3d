//! `firn-edge smb user …`: who may log in over SMB.
//!
//! The commands work on the files below the state directory, whether the edge runs or not; smbd sees what they change at the next login.

use super::{
    paths::Paths,
    section::SmbSection,
    supervisor::write_files,
    tools,
    users::{self, Table, User},
};
use crate::{config::Config, failure::Failure, parts::environment};
use clap::Subcommand;
use firn_env::{Env, println};
use rustix::fs::FlockOperation;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, IsTerminal},
    os::unix::fs::OpenOptionsExt,
};
use zeroize::Zeroizing;

/// Samba's longest.
const PASSWORD_BYTES_MAX: usize = 127;

/// What is done about SMB.
#[derive(Clone, Debug, Subcommand)]
pub enum SmbCommand {
    /// Who may log in.
    User {
        #[command(subcommand)]
        what: UserCommand,
    },
    /// Makes this edge a member of the Active Directory domain that the configuration names. Asks for the password of who may do that, or reads
    /// it as one line from standard input.
    Join {
        /// The domain's name in DNS, as in [smb.domain].
        domain: String,
        /// An account of the domain that may join machines.
        #[arg(long, default_value = "Administrator")]
        user: String,
    },
    /// Gives the edge's account in the domain up.
    Leave {
        /// An account of the domain that may do that.
        #[arg(long, default_value = "Administrator")]
        user: String,
    },
}

/// What is done about users.
#[derive(Clone, Debug, Subcommand)]
pub enum UserCommand {
    /// Adds a user. Asks for the password, or reads it as one line from standard input.
    Add {
        /// Lower case, as on Linux.
        name: String,
        /// The number by which the volume knows the user: the one that NFS clients use.
        #[arg(long)]
        uid: u32,
        /// The number of the user's group; by default that of the user.
        #[arg(long)]
        gid: Option<u32>,
        /// A further group, for rights on files and for `users = ["@NAME"]` of a share; may be given several times.
        #[arg(long = "group", value_name = "NAME:GID", value_parser = named_group)]
        groups: Vec<(String, u32)>,
    },
    /// Removes a user. Connections that are open stay until they end.
    Remove {
        /// Who.
        name: String,
    },
    /// Sets a user's password anew. Asks for it, or reads it as one line from standard input.
    Passwd {
        /// Who.
        name: String,
    },
    /// Lists the users.
    List,
}

fn named_group(text: &str) -> Result<(String, u32), String> {
    let (name, gid) = text
        .split_once(':')
        .ok_or("a group is written NAME:GID, as in staff:3000")?;
    let gid = gid
        .parse()
        .map_err(|_| format!("{gid} is no number of a group"))?;
    users::check_name(name)?;
    Ok((name.to_owned(), gid))
}

/// Does it.
pub async fn execute(config: &Config, command: SmbCommand) -> Result<(), Failure> {
    let Some(smb) = &config.smb else {
        return Err(Failure::usage(
            "the configuration has no [smb]: nothing would use these users",
        ));
    };
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::usage(
            "run this as root: Samba's table of passwords is root's",
        ));
    }
    let env = environment(&config.volume.state_directory)?;
    let place = Place::open(&env, config, smb)?;
    let what = match command {
        SmbCommand::User { what } => what,
        SmbCommand::Join { domain, user } => return place.join(&domain, &user).await,
        SmbCommand::Leave { user } => return place.leave(&user).await,
    };
    match what {
        UserCommand::Add {
            name,
            uid,
            gid,
            groups,
        } => {
            let user = User {
                name,
                uid,
                gid: gid.unwrap_or(uid),
                groups: groups.into_iter().collect::<BTreeMap<_, _>>(),
            };
            place.add(user).await
        }
        UserCommand::Remove { name } => place.remove(&name).await,
        UserCommand::Passwd { name } => place.set_password(&name).await,
        UserCommand::List => place.list().await,
    }
}

pub(super) struct Place<'a> {
    pub env: &'a Env,
    config: &'a Config,
    pub smb: &'a SmbSection,
    pub paths: Paths,
    /// Of the table: of two commands at one time one waits for the other.
    _lock: File,
}

impl<'a> Place<'a> {
    fn open(env: &'a Env, config: &'a Config, smb: &'a SmbSection) -> Result<Self, Failure> {
        let paths = Paths::new(&config.volume.state_directory);
        let disk = |error: std::io::Error| {
            Failure::new(format!("cannot use {}: {error}", paths.directory.display()))
        };
        paths.make().map_err(disk)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(paths.lock())
            .map_err(disk)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| disk(error.into()))?;
        Ok(Self {
            env,
            config,
            smb,
            paths,
            _lock: lock,
        })
    }

    pub fn load(&self) -> Result<Table, Failure> {
        Table::load(&self.paths)
    }

    pub fn write(&self, table: &Table) -> Result<(), Failure> {
        write_files(self.config, self.smb, &self.paths, table).map_err(|error| {
            Failure::new(format!(
                "cannot write {}: {error}",
                self.paths.directory.display()
            ))
        })
    }

    pub async fn tool(&self, tool: &str, arguments: &[&str], input: String) -> Result<String, Failure> {
        let configuration = self.paths.configuration().display().to_string();
        let all: Vec<&str> = arguments
            .iter()
            .map(|one| {
                if *one == "CONFIGURATION" {
                    configuration.as_str()
                } else {
                    *one
                }
            })
            .collect();
        tools::run(self.env, &self.paths, tool, &all, input)
            .await
            .map_err(Failure::new)
    }

    /// Samba's entry of a user with this password, made if there is none.
    async fn enter(&self, name: &str, password: &str) -> Result<(), Failure> {
        let input = format!("{password}\n{password}\n");
        self.tool("smbpasswd", &["-c", "CONFIGURATION", "-s", "-a", name], input)
            .await
            .map(drop)
    }

    async fn add(&self, user: User) -> Result<(), Failure> {
        let name = user.name.clone();
        let mut table = self.load()?;
        if let Some(domain) = self.smb.domain.as_ref().filter(|domain| domain.owns(user.uid)) {
            return Err(Failure::usage(format!(
                "uid {} is one of the domain {}'s; nothing was changed",
                user.uid, domain.name
            )));
        }
        table.add(user).map_err(Failure::usage)?;
        let password = password(&name)?;
        // First the account, which Samba wants to see; the table last, so that a command that failed can be given again.
        self.write(&table)?;
        if let Err(error) = self.enter(&name, &password).await {
            self.write(&self.load()?)?;
            return Err(error.because(format!("{name} was not added")));
        }
        table.store(&self.paths)?;
        println!("{name} may log in over SMB");
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<(), Failure> {
        let mut table = self.load()?;
        if table.find(name).is_none() {
            return Err(Failure::usage(format!(
                "there is no user {name}; nothing was changed"
            )));
        }
        self.write(&table)?;
        let has_password = tools::names(self.env, &self.paths)
            .await
            .map_err(Failure::new)?
            .iter()
            .any(|known| known == name);
        if has_password {
            self.tool(
                "pdbedit",
                &["--configfile", "CONFIGURATION", "--delete", "--user", name],
                String::new(),
            )
            .await?;
        }
        table.users.retain(|user| user.name != name);
        table.store(&self.paths)?;
        self.write(&table)?;
        println!("{name} cannot log in over SMB any more; connections that are open stay until they end");
        Ok(())
    }

    async fn set_password(&self, name: &str) -> Result<(), Failure> {
        let table = self.load()?;
        if table.find(name).is_none() {
            return Err(Failure::usage(format!(
                "there is no user {name}; add one with firn-edge smb user add"
            )));
        }
        let password = password(name)?;
        self.write(&table)?;
        self.enter(name, &password).await?;
        println!("{name} has a new password");
        Ok(())
    }

    async fn list(&self) -> Result<(), Failure> {
        let table = self.load()?;
        if table.users.is_empty() {
            println!("no users; add one with firn-edge smb user add");
            return Ok(());
        }
        self.write(&table)?;
        let named = tools::names(self.env, &self.paths).await.map_err(Failure::new)?;
        println!(
            "{:<32} {:>10} {:>10}  {:<8}  GROUPS",
            "NAME", "UID", "GID", "PASSWORD"
        );
        for user in &table.users {
            let groups: Vec<String> = user
                .groups
                .iter()
                .map(|(name, gid)| format!("{name}:{gid}"))
                .collect();
            let has = if named.contains(&user.name) { "yes" } else { "no" };
            println!(
                "{:<32} {:>10} {:>10}  {has:<8}  {}",
                user.name,
                user.uid,
                user.gid,
                groups.join(" ")
            );
        }
        Ok(())
    }
}

/// The password of an account that is there, typed once without being shown, or a line of standard input.
pub(super) fn known_password(name: &str) -> Result<Zeroizing<String>, Failure> {
    let unreadable = |error: std::io::Error| Failure::usage(format!("the password cannot be read: {error}"));
    let password = if std::io::stdin().is_terminal() {
        Zeroizing::new(rpassword::prompt_password(format!("Password of {name}: ")).map_err(unreadable)?)
    } else {
        line_of_input()?
    };
    check_password(password)
}

fn line_of_input() -> Result<Zeroizing<String>, Failure> {
    let mut line = Zeroizing::new(String::new());
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| Failure::usage(format!("the password cannot be read: {error}")))?;
    Ok(Zeroizing::new(line.trim_end_matches(['\r', '\n']).to_owned()))
}

fn check_password(password: Zeroizing<String>) -> Result<Zeroizing<String>, Failure> {
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX || password.contains(['\n', '\0']) {
        return Err(Failure::usage(format!(
            "a password has 1 to {PASSWORD_BYTES_MAX} bytes, in one line; nothing was changed"
        )));
    }
    Ok(password)
}

/// The password, typed twice without being shown, or a line of standard input.
fn password(name: &str) -> Result<Zeroizing<String>, Failure> {
    let unreadable = |error: std::io::Error| Failure::usage(format!("the password cannot be read: {error}"));
    let password = if std::io::stdin().is_terminal() {
        let first =
            Zeroizing::new(rpassword::prompt_password(format!("Password of {name}: ")).map_err(unreadable)?);
        let second = Zeroizing::new(rpassword::prompt_password("Once more: ").map_err(unreadable)?);
        if *first != *second {
            return Err(Failure::usage("the two are not the same; nothing was changed"));
        }
        first
    } else {
        line_of_input()?
    };
    check_password(password)
}
