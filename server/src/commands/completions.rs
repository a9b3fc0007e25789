//! `dressage completions SHELL`.

use crate::cli::Cli;
use crate::error::Failure;
use crate::exit::Exit;
use crate::terminal::Terminal;
use clap::CommandFactory;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The shell.
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Writes the script to standard output.
///
/// # Errors
/// Where standard output cannot be written.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "dressage", &mut script);
    terminal
        .bytes(&script)
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
    Ok(Exit::Done)
}
