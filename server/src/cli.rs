//! The command line: global options and one variant a command. What a command takes stands in its own file.

use crate::commands;
use crate::exit::Exit;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Real coding agents, run as reinforcement-learning rollouts.
///
/// A task goes in; a sandbox is booted, set up and given to an unmodified agent; every call that the agent makes to its
/// model is recorded with its exact token ids and log-probabilities; the result is verified and rewarded.
#[derive(Debug, Parser)]
#[command(
    name = "dressage",
    version,
    after_help = Exit::help(),
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Taken by every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What is to be done.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Where rollouts are kept.
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where agents are installed.
    #[arg(long, global = true, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// The configuration file.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How the log on standard error is written.
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
    /// Log more; twice for much more.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Say nothing but results and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// When output is coloured.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: Color,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line an event, for people.
    #[default]
    Text,
    /// A JSON object an event.
    Json,
}

/// When output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a real agent in a sandbox without network, against a scripted model: from task to reward, offline.
    Demo(commands::demo::Arguments),
    /// Run rollouts of an instruction, of task files, or of a directory of them.
    Run(Box<commands::run::Arguments>),
    /// Serve OpenEnv clients, REST and MCP.
    Serve(Box<commands::serve::Arguments>),
    /// Speak MCP on standard input and output.
    Mcp(commands::mcp::Arguments),
    /// List rollouts.
    List(commands::list::Arguments),
    /// Show a rollout: stages, commands, calls, reward, files.
    Show(commands::show::Arguments),
    /// Export rollouts as rows for trainers: JSON lines or Parquet.
    Export(Box<commands::export::Arguments>),
    /// Take in rollouts that were exported elsewhere.
    Import(commands::import::Arguments),
    /// Check that rollouts and exported files are sound.
    Validate(commands::validate::Arguments),
    /// Say what this machine can do.
    Doctor(commands::doctor::Arguments),
    /// List or install agents.
    Agents(commands::agents::Arguments),
    /// List sandboxes, or end those that dead processes left.
    Sandboxes(commands::sandboxes::Arguments),
    /// Build images with agents in them, so that none is uploaded to each sandbox.
    Template(commands::template::Arguments),
    /// Write a completion script for a shell.
    Completions(commands::completions::Arguments),
    /// Write a page of docs/ that is made from the source.
    #[command(hide = true)]
    Docs(commands::docs::Arguments),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
