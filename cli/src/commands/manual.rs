//! Completion scripts and manual pages, made from the command line's own description.

use super::Context;
use crate::{
    arguments::Arguments,
    failure::{Failure, of_file},
    screen::note,
};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::{Path, PathBuf};

pub fn completions(context: &Context, shell: Shell, install: bool) -> Result<(), Failure> {
    let script = firn_manual::completions(Arguments::command(), shell);
    let script = String::from_utf8(script).map_err(|error| Failure::failed(error.to_string()))?;
    if !install {
        return context.screen.print(&script);
    }
    let (path, then) = place(shell)?;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(of_file(directory))?;
    }
    std::fs::write(&path, script).map_err(of_file(&path))?;
    context.screen.print(&format!("{}\n", path.display()))?;
    note(then);
    Ok(())
}

/// Where a shell looks for completion scripts of one user, and what makes it look.
fn place(shell: Shell) -> Result<(PathBuf, &'static str), Failure> {
    let home = || {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        home.map(PathBuf::from)
            .ok_or_else(|| Failure::usage("no place for it: set HOME"))
    };
    let below = |variable: &str, usual: &str| match std::env::var_os(variable) {
        Some(directory) if !directory.is_empty() => Ok(PathBuf::from(directory)),
        Some(_) | None => home().map(|home| home.join(usual)),
    };
    match shell {
        Shell::Bash => {
            let data = below("XDG_DATA_HOME", ".local/share")?;
            let path = data.join("bash-completion/completions/firn");
            Ok((path, "Start a new shell; bash needs the package bash-completion."))
        }
        Shell::Zsh => {
            let data = below("XDG_DATA_HOME", ".local/share")?;
            let path = data.join("zsh/site-functions/_firn");
            let then = "Start a new shell. If zsh does not find it, put this before compinit in ~/.zshrc:\n  \
                        fpath=(${XDG_DATA_HOME:-~/.local/share}/zsh/site-functions $fpath)";
            Ok((path, then))
        }
        Shell::Fish => {
            let configuration = below("XDG_CONFIG_HOME", ".config")?;
            Ok((
                configuration.join("fish/completions/firn.fish"),
                "Start a new shell.",
            ))
        }
        other => Err(
            Failure::usage(format!("{other} has no directory for such scripts")).next(format!(
                "run: firn completions {other}, and load what it prints from your profile"
            )),
        ),
    }
}

/// One page a command: firn.1, firn-volume.1, firn-volume-create.1, …
pub fn write(context: &Context, directory: &Path) -> Result<(), Failure> {
    let pages = firn_manual::write_pages(Arguments::command(), firn_manual::Section::Commands, directory)
        .map_err(|error| Failure::failed(error.to_string()))?;
    context
        .screen
        .print(&format!("{pages} pages in {}\n", directory.display()))
}
