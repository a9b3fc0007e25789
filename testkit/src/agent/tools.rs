//! The tools: bash, read and write, by OpenCode's names and arguments.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes of a tool's output that the model gets.
const OUTPUT_BYTES: usize = 30_000;

/// What the model is offered.
pub(super) fn offered() -> Value {
    let tool = |name: &str, description: &str, required: &[&str]| {
        let properties = required
            .iter()
            .map(|name| ((*name).to_owned(), json!({"type": "string"})));
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": {
            "type": "object", "properties": properties.collect::<serde_json::Map<_, _>>(), "required": required,
        }}})
    };
    json!([
        tool("bash", "Executes a bash command.", &["command", "description"]),
        tool("read", "Reads a file.", &["filePath"]),
        tool(
            "write",
            "Writes a file, with the directories it needs.",
            &["content", "filePath"]
        ),
    ])
}

/// Why a tool failed, in words for the model.
#[derive(Debug, thiserror::Error)]
pub(super) enum ToolError {
    /// There is no such tool.
    #[error("unknown tool {name}")]
    Unknown {
        /// The name that was called.
        name: String,
    },
    /// The arguments are no JSON.
    #[error("the arguments are no JSON: {source}")]
    BadArguments {
        /// What the parser says.
        source: serde_json::Error,
    },
    /// An argument is not there.
    #[error("the argument {name} is missing")]
    Missing {
        /// Its name.
        name: &'static str,
    },
    /// The machine said no.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

/// Does what a call asks for; the text is for the model.
pub(super) fn execute(name: &str, arguments: &str) -> Result<String, ToolError> {
    let arguments: Value =
        serde_json::from_str(arguments).map_err(|source| ToolError::BadArguments { source })?;
    let argument = |name: &'static str| {
        arguments
            .get(name)
            .and_then(Value::as_str)
            .ok_or(ToolError::Missing { name })
    };
    match name {
        "write" => write(Path::new(argument("filePath")?), argument("content")?),
        "read" => {
            let path = argument("filePath")?;
            std::fs::read(path)
                .map(|bytes| clipped(&bytes))
                .map_err(|source| io("cannot read", path, source))
        }
        "bash" => bash(argument("command")?),
        other => Err(ToolError::Unknown { name: other.into() }),
    }
}

fn io(what: &str, object: &str, source: std::io::Error) -> ToolError {
    ToolError::Io {
        what: format!("{what} {object}"),
        source,
    }
}

fn write(path: &Path, content: &str) -> Result<String, ToolError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    directory
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(path, content))
        .map_err(|source| io("cannot write", &path.display().to_string(), source))?;
    Ok("Wrote file successfully.".into())
}

fn bash(command: &str) -> Result<String, ToolError> {
    let shell = if PathBuf::from("/bin/bash").exists() {
        "/bin/bash"
    } else {
        "/bin/sh"
    };
    let mut process = Command::new(shell);
    let output = process.args(["-c", command]).stdin(Stdio::null()).output();
    let output = output.map_err(|source| io("cannot run", shell, source))?;
    let mut text = clipped(&[output.stdout, output.stderr].concat());
    if !output.status.success() {
        text.push_str(&format!("\n({})", output.status));
    }
    Ok(text)
}

fn clipped(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..OUTPUT_BYTES).unwrap_or(bytes)).into_owned()
}
