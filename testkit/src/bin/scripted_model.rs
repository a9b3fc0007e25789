//! Serves the scripted model until it is interrupted, and prints its base URL.

use clap::Parser;
use dressage_testkit::fault::FaultPlan;
use dressage_testkit::model::{PresetScript, Script, ScriptedModelConfig, ScriptedTurns, serve};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

/// A model endpoint that follows a script: vLLM-shaped, honest about tokens, faulty on demand.
#[derive(Debug, Parser)]
struct Options {
    /// Port of 127.0.0.1; 0 takes any that is free.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// The model's name.
    #[arg(long, default_value = "scripted")]
    model: String,
    /// Key to ask for; none is asked for if unset.
    #[arg(long)]
    api_key: Option<String>,
    /// File of turns: a JSON array of {reasoning, text, tool_calls: [{name, arguments}], delay_ms, event_delay_ms}. The
    /// preset tasks are solved if unset.
    #[arg(long, conflicts_with = "long")]
    script: Option<PathBuf>,
    /// Make this many turns up instead.
    #[arg(long)]
    long: Option<usize>,
    /// Tokens of a turn that is made up.
    #[arg(long, default_value_t = 500, requires = "long")]
    turn_tokens: usize,
    /// File of faults: {"calls": {"0": [{"fault": "cut", "after_events": 3, "how": "reset"}]}, "always": []}.
    #[arg(long)]
    faults: Option<PathBuf>,
    /// Tokens of prompt and completion together.
    #[arg(long, default_value_t = 131_072)]
    max_model_len: usize,
}

/// Why the model cannot be served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot understand {path}: {source}")]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("cannot listen on port {port} of 127.0.0.1: {source}")]
    Listen { port: u16, source: std::io::Error },
    #[error("cannot print the base URL: {source}")]
    Print { source: std::io::Error },
    #[error("cannot wait for an interrupt: {source}")]
    Interrupt { source: std::io::Error },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    match run(Options::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), ServeError> {
    let script: Arc<dyn Script> = match (options.script, options.long) {
        (Some(path), _) => Arc::new(read::<ScriptedTurns>(path)?),
        (None, Some(turns)) => Arc::new(ScriptedTurns::long(turns, options.turn_tokens)),
        (None, None) => Arc::new(PresetScript),
    };
    let config = ScriptedModelConfig {
        model: options.model,
        api_key: options.api_key,
        script,
        faults: options.faults.map_or_else(|| Ok(FaultPlan::default()), read)?,
        max_model_len: options.max_model_len,
        ..ScriptedModelConfig::default()
    };
    let port = options.port;
    let listen = |source| ServeError::Listen { port, source };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(listen)?;
    let model = serve(listener, config).map_err(listen)?;
    let print = |source| ServeError::Print { source };
    writeln!(std::io::stdout(), "{}", model.base_url()).map_err(print)?;
    tokio::signal::ctrl_c()
        .await
        .map_err(|source| ServeError::Interrupt { source })?;
    model.shutdown().await;
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(path: PathBuf) -> Result<T, ServeError> {
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).map_err(|source| ServeError::Parse { path, source }),
        Err(source) => Err(ServeError::Read { path, source }),
    }
}
