//! The scripted agent: a tiny coding agent that does what its model says, or misbehaves on purpose.
//!
//! It stands in for `opencode run --format json`: it takes the same arguments and the same configuration variable, reads
//! its prompt from standard input, sends the same signs, re-serialises tool arguments as compactly, and prints the same
//! lines. It starts in milliseconds. It does not sandbox anything: its tools run as it runs.

/// The command line and the variables.
mod options;

/// What it does wrong on purpose.
mod misbehaviour;

/// The conversation, from the prompt to the turn without a tool call.
mod run;

/// One exchange with the model.
mod exchange;

/// A blocking HTTP client, as small as it can be.
mod http;

/// The tools: bash, read, write.
mod tools;

/// The lines it prints.
mod lines;

pub use misbehaviour::Misbehaviour;
pub use options::{AgentOptions, ArgumentStyle, OptionsError};
pub use run::{AgentExit, run};
