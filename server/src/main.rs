//! `dressage`: real coding agents, run as reinforcement-learning rollouts.
//!
//! This package alone reads the environment, prints, and exits. Here is the composition root: options and environment
//! become folders, a terminal and a log, and then one command runs.

/// The command line.
mod cli;

/// The commands.
mod commands;

/// The environment variables.
mod environment;

/// The configuration file.
mod config;

/// Folders.
mod paths;

/// Access to providers of sandboxes.
mod providers;

/// The catalogue of endpoints.
mod endpoints;

/// The embedded program.
mod embedded;

/// Standard output and standard error.
mod terminal;

/// The log.
mod logging;

/// Failures as they are shown.
mod error;

/// Exit codes.
mod exit;

/// What commands work with.
mod workspace;

/// Sandboxes that are ready before they are asked for.
mod warm;

/// Ctrl-C.
mod interrupt;

/// Rollouts as they run.
mod progress;

/// Rollouts as people read them.
mod render;

/// Rollouts as folders.
mod output;

/// What is trained, as it is asked for.
mod selection;

/// Objects in stores.
mod objects;

/// What a server does.
mod service;

/// What a server counts.
mod metrics;

/// What a server traces.
mod traces;

/// The HTTP server.
mod http;

/// REST under `/api/v1`.
mod rest;

/// What OpenEnv clients speak.
mod openenv;

/// MCP.
mod mcp;

/// The page.
mod web;

use clap::Parser;
use cli::{Cli, Color, Command};
use error::Failure;
use exit::Exit;
use std::process::ExitCode;
use std::time::Duration;
use terminal::{Chatter, Terminal};
use workspace::Context;

/// How long work that was left behind may take when a command is over.
const LAST_WORK: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let color = match cli.globals.color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    };
    let chatter = if cli.globals.quiet {
        Chatter::Quiet
    } else {
        Chatter::Normal
    };
    let terminal = Terminal::new(color, chatter);
    match run(cli, &terminal).and_then(|exit| printed(exit, &terminal)) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            terminal.failure(&failure);
            failure.exit.into()
        }
    }
}

/// A result that could not be printed is no result: whoever reads it would take half of it for the whole.
fn printed(exit: Exit, terminal: &Terminal) -> Result<Exit, Failure> {
    match terminal.lost() {
        Some(error) => Err(
            Failure::new(Exit::MachineLacks, "standard output could not be written").cause(error.to_string()),
        ),
        None => Ok(exit),
    }
}

fn run(cli: Cli, terminal: &Terminal) -> Result<Exit, Failure> {
    // These need neither folders nor environment.
    match &cli.command {
        Command::Completions(arguments) => return commands::completions::run(arguments, terminal),
        Command::Docs(arguments) => return commands::docs::run(arguments, terminal),
        _ => {}
    }
    let context = Context::new(&cli.globals, terminal)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
    let exit = runtime.block_on(async {
        match &cli.command {
            Command::Demo(arguments) => commands::demo::run(arguments, &context).await,
            Command::Run(arguments) => commands::run::run(arguments, &context).await,
            Command::Serve(arguments) => commands::serve::run(arguments, &context).await,
            Command::Mcp(arguments) => commands::mcp::run(arguments, &context).await,
            Command::List(arguments) => commands::list::run(arguments, &context).await,
            Command::Show(arguments) => commands::show::run(arguments, &context).await,
            Command::Export(arguments) => commands::export::run(arguments, &context).await,
            Command::Import(arguments) => commands::import::run(arguments, &context).await,
            Command::Validate(arguments) => commands::validate::run(arguments, &context).await,
            Command::Doctor(arguments) => commands::doctor::run(arguments, &context).await,
            Command::Agents(arguments) => commands::agents::run(arguments, &context).await,
            Command::Sandboxes(arguments) => commands::sandboxes::run(arguments, &context).await,
            Command::Template(arguments) => commands::template::run(arguments, &context).await,
            Command::Completions(_) | Command::Docs(_) => Ok(Exit::Done),
        }
    });
    // What still blocks a thread (a read from a terminal, a lookup of a name) is not waited for.
    runtime.shutdown_timeout(LAST_WORK);
    exit
}
