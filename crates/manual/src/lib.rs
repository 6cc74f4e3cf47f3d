//! Manual pages and completion scripts of Firn's programs, made from the description that also reads their command lines, so that
//! none of the three can say something else than the others.
//!
//! `firn` shows its two commands for it; the programs of services hide them behind [`ManualCommand`], since who needs the files is who
//! builds packages.

use clap::{Command, Subcommand};
use clap_complete::Shell;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The section of the manual for what everybody types, and for what administrators and service managers run. `firn edge join` and
/// `firn-edge join` have pages of one name, and so must lie in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// 1: commands.
    Commands,
    /// 8: administration.
    Administration,
}

impl Section {
    fn number(self) -> &'static str {
        match self {
            Self::Commands => "1",
            Self::Administration => "8",
        }
    }
}

/// The two commands, to be flattened into a program's own.
#[derive(Debug, Subcommand)]
pub enum ManualCommand {
    /// Prints a completion script.
    #[command(hide = true)]
    Completions {
        /// For which shell.
        shell: Shell,
    },
    /// Writes manual pages of section 8 into a directory.
    #[command(hide = true)]
    Man {
        /// The directory, made if need be.
        directory: PathBuf,
    },
}

impl ManualCommand {
    /// Does it, for the program that `command` describes.
    ///
    /// # Errors
    ///
    /// The standard output or a file cannot be written; the message names the file.
    pub fn run(&self, command: Command) -> io::Result<()> {
        match self {
            Self::Completions { shell } => {
                io::Write::write_all(&mut io::stdout(), &completions(command, *shell))
            }
            Self::Man { directory } => write_pages(command, Section::Administration, directory).map(drop),
        }
    }
}

/// The script that completes `command` in `shell`.
#[must_use]
pub fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Writes one page a command into `directory`, which is made if need be: `firn.1`, `firn-volume.1`, `firn-volume-create.1` and so on.
/// Commands that are hidden get none. Returns how many were written.
///
/// # Errors
///
/// A directory or file cannot be written; the message names it.
pub fn write_pages(mut command: Command, section: Section, directory: &Path) -> io::Result<usize> {
    fs::create_dir_all(directory).map_err(|error| of(directory, &error))?;
    command.build();
    let name = command.get_name().to_owned();
    write_page(&command, &name, section, directory)
}

fn write_page(command: &Command, name: &str, section: Section, directory: &Path) -> io::Result<usize> {
    let path = directory.join(format!("{name}.{}", section.number()));
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .section(section.number())
        .render(&mut page)
        .and_then(|()| fs::write(&path, page))
        .map_err(|error| of(&path, &error))?;
    let mut pages = 1;
    for child in command.get_subcommands() {
        if child.get_name() != "help" && !child.is_hide_set() {
            let name = format!("{name}-{}", child.get_name());
            pages += write_page(child, &name, section, directory)?;
        }
    }
    Ok(pages)
}

fn of(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        let command =
            Command::new("firn-example").subcommand(Command::new("show").subcommand(Command::new("all")));
        // As the derived code of programs does it: what they are about comes last.
        ManualCommand::augment_subcommands(command).about("Stands for a program.")
    }

    #[test]
    fn every_command_that_is_shown_has_a_page_and_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let pages = write_pages(program(), Section::Administration, directory.path()).expect("pages");
        let mut found: Vec<String> = fs::read_dir(directory.path())
            .expect("the directory")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("a name")
            })
            .collect();
        found.sort();
        assert_eq!(
            found,
            ["firn-example-show-all.8", "firn-example-show.8", "firn-example.8"]
        );
        assert_eq!(pages, found.len());
        let page = fs::read_to_string(directory.path().join("firn-example.8")).expect("a page");
        assert!(page.contains("Stands for a program."), "{page}");
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "").expect("a file");
        let error = write_pages(program(), Section::Commands, &file).expect_err("it is no directory");
        assert!(error.to_string().contains("file"), "{error}");
    }

    #[test]
    fn scripts_complete_the_commands() {
        let script = String::from_utf8(completions(program(), Shell::Bash)).expect("text");
        assert!(
            script.contains("firn-example") && script.contains("show"),
            "{script}"
        );
    }
}
