//! `firn-edge smb join` and `leave`: the edge's account in an Active Directory domain, made by Samba's own tool.

use super::{
    commands::{Place, known_password},
    domain::{self, DomainSection},
};
use crate::failure::Failure;
use firn_env::println;

impl Place<'_> {
    fn domain(&self) -> Result<&DomainSection, Failure> {
        self.smb.domain.as_ref().ok_or_else(|| {
            Failure::usage(
                "the configuration names no domain: add [smb.domain] with its name and short_name; nothing was changed",
            )
        })
    }

    /// Names of accounts stand on the tool's command line, where `%` would begin a password.
    fn check_account(user: &str) -> Result<(), Failure> {
        let is_account = !user.is_empty() && !user.starts_with('-') && !user.contains(['%', '\n', '\0']);
        match is_account {
            true => Ok(()),
            false => Err(Failure::usage(format!("{user:?} cannot be an account's name"))),
        }
    }

    /// Makes the edge a member.
    pub async fn join(&self, name: &str, user: &str) -> Result<(), Failure> {
        let domain = self.domain()?;
        if !name.eq_ignore_ascii_case(&domain.name) {
            return Err(Failure::usage(format!(
                "smb.domain.name is {}, not {name}; nothing was changed",
                domain.name
            )));
        }
        Self::check_account(user)?;
        self.write(&self.load()?)?;
        let offset = domain::clock_offset_seconds(self.env, &self.paths).await.map_err(|error| {
            Failure::new(format!(
                "no controller of {name} answers ({error}): this machine's DNS must find _ldap._tcp.{name}, and ports 88, 389 and 445 of it \
                 must be open; nothing was changed"
            ))
        })?;
        if let Some(fault) = domain::clock_fault(offset) {
            return Err(Failure::new(format!("{fault}; nothing was changed")));
        }
        let password = known_password(user)?;
        let arguments = [
            "ads",
            "join",
            "--configfile",
            "CONFIGURATION",
            "--user",
            user,
            "--no-dns-updates",
        ];
        self.tool("net", &arguments, format!("{}\n", *password))
            .await
            .map_err(|error| error.because(format!("the edge was not made a member of {name}")))?;
        println!(
            "this edge is a member of {name}: its users log in as {short}\\NAME once it runs with [smb.domain], within a minute if it does; \
             for Kerberos clients must reach it by a name of the domain's DNS",
            short = domain.short_name
        );
        Ok(())
    }

    /// Gives the account up.
    pub async fn leave(&self, user: &str) -> Result<(), Failure> {
        let domain = self.domain()?;
        Self::check_account(user)?;
        self.write(&self.load()?)?;
        if !domain::is_joined(self.env, &self.paths).await {
            return Err(Failure::usage(format!(
                "this edge has no account in {}; nothing was changed",
                domain.name
            )));
        }
        let password = known_password(user)?;
        let arguments = ["ads", "leave", "--configfile", "CONFIGURATION", "--user", user];
        self.tool("net", &arguments, format!("{}\n", *password))
            .await
            .map_err(|error| error.because(format!("the edge is a member of {} still", domain.name)))?;
        println!(
            "this edge is no member of {} any more: take [smb.domain] out of the configuration and restart it; files keep their owners' numbers",
            domain.name
        );
        Ok(())
    }
}
