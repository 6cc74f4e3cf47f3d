//! Completion scripts and manual pages, made from the command line's own description.

use super::Context;
use crate::{
    arguments::Arguments,
    failure::{Failure, of_file},
};
use clap::{Command, CommandFactory as _};
use std::path::Path;

pub fn completions(context: &Context, shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "firn", &mut script);
    let script = String::from_utf8(script).map_err(|error| Failure::failed(error.to_string()))?;
    context.screen.print(&script)
}

/// One page a command: firn.1, firn-volume.1, firn-volume-create.1, …
pub fn write(context: &Context, directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(of_file(directory))?;
    let mut command = Arguments::command();
    command.build();
    let pages = page(&command, "firn", directory)?;
    context
        .screen
        .print(&format!("{pages} pages in {}\n", directory.display()))
}

fn page(command: &Command, name: &str, directory: &Path) -> Result<usize, Failure> {
    let path = directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut text)
        .and_then(|()| std::fs::write(&path, text))
        .map_err(of_file(&path))?;
    let mut pages = 1;
    for child in command
        .get_subcommands()
        .filter(|child| child.get_name() != "help")
    {
        pages += page(child, &format!("{name}-{}", child.get_name()), directory)?;
    }
    Ok(pages)
}
