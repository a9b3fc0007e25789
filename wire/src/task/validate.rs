use super::{McpServer, NetworkPolicy, Task, TaskError};
use crate::sampling::Sampling;
use std::collections::BTreeMap;

/// Bytes that an instruction may have.
pub const INSTRUCTION_MAX_BYTES: usize = 4 << 20;

/// Hosts that a task may allow its sandbox to reach.
pub const ALLOWED_HOSTS_MAX: usize = 256;

/// Seconds that a stage may last: thirty days.
pub const TIMEOUT_MAX_S: f64 = 30.0 * 24.0 * 3600.0;

impl Task {
    /// Checks what types cannot say. A task that was read from text has passed this.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place in the task.
    pub fn validate(&self) -> Result<(), TaskError> {
        if self.instruction.trim().is_empty() {
            return Err(TaskError::NoInstruction);
        }
        if self.instruction.len() > INSTRUCTION_MAX_BYTES {
            let bytes = self.instruction.len();
            return Err(TaskError::InstructionTooLong {
                bytes,
                limit: INSTRUCTION_MAX_BYTES,
            });
        }
        for (index, prompt) in self.turns.iter().enumerate() {
            let at = format!("turns[{index}]");
            if prompt.trim().is_empty() {
                return Err(bad(&at, "is empty"));
            }
            if prompt.len() > INSTRUCTION_MAX_BYTES {
                let bytes = prompt.len();
                let problem = format!("has {bytes} bytes, over the limit of {INSTRUCTION_MAX_BYTES}");
                return Err(bad(&at, problem));
            }
        }
        commands("setup", &self.setup)?;
        commands("verify", &self.verify)?;
        for (key, files) in [("files", &self.files), ("verify_files", &self.verify_files)] {
            for (path, content) in files {
                let at = format!("{key}.\"{path}\"");
                file_path(&at, path)?;
                content.bytes().map_err(|error| bad(&at, error.to_string()))?;
            }
        }
        for (index, path) in self.outputs.iter().enumerate() {
            output_path(&format!("outputs[{index}]"), path)?;
        }
        environment("env", &self.env)?;
        environment("agent.env", &self.agent.env)?;
        if self.agent.name.is_empty() {
            return Err(bad("agent.name", "is empty"));
        }
        for (name, server) in &self.agent.mcp_servers {
            server.validate(name)?;
        }
        self.image()?;
        self.network()?;
        self.limits.validate()?;
        self.sampling.validate("sampling")?;
        let range = self.reward;
        if !(range.min.is_finite() && range.max.is_finite() && range.min < range.max) {
            return Err(bad(
                "reward",
                format!("goes from {} to {}, which is no range", range.min, range.max),
            ));
        }
        Ok(())
    }
}

impl Task {
    fn network(&self) -> Result<(), TaskError> {
        let NetworkPolicy::Allow(hosts) = &self.network else {
            return Ok(());
        };
        match hosts.len() {
            0 => Err(bad(
                "network.allow",
                "names no host; a sandbox without a network has network = \"none\"",
            )),
            count if count > ALLOWED_HOSTS_MAX => Err(bad(
                "network.allow",
                format!("names {count} hosts, over the limit of {ALLOWED_HOSTS_MAX}"),
            )),
            _ => Ok(()),
        }
    }

    /// What the sandbox is made of, and who its programs are.
    fn image(&self) -> Result<(), TaskError> {
        if let Some(dockerfile) = &self.dockerfile {
            if self.image.is_some() {
                return Err(bad("dockerfile", "and `image` cannot both be given"));
            }
            let text = dockerfile
                .bytes()
                .map_err(|error| bad("dockerfile", error.to_string()))?;
            if !std::str::from_utf8(&text).is_ok_and(|text| !text.trim().is_empty()) {
                return Err(bad("dockerfile", "is empty, or no text"));
            }
        }
        if self.image.as_ref().is_some_and(String::is_empty) {
            return Err(bad("image", "is empty"));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        match &self.user {
            Some(user) if user.is_empty() || user.starts_with('-') || !user.bytes().all(plain) => {
                Err(bad("user", "is neither a name nor a number of a user"))
            }
            _ => Ok(()),
        }
    }
}

impl McpServer {
    fn validate(&self, name: &str) -> Result<(), TaskError> {
        let at = format!("agent.mcp_servers.\"{name}\"");
        // Agents name a server's tools after it, and models take no other characters in the name of a tool.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(bad(
                &at,
                "has a name with other characters than letters, digits, `_` and `-`",
            ));
        }
        match (&self.command, &self.url) {
            (Some(command), None) if command.is_empty() => return Err(bad(&at, "has an empty command")),
            (Some(_), None) if !self.headers.is_empty() => {
                return Err(bad(&at, "has headers, which only a server with a url is sent"));
            }
            (None, Some(_)) if !(self.args.is_empty() && self.env.is_empty()) => {
                return Err(bad(
                    &at,
                    "has args or env, which only a server with a command is given",
                ));
            }
            (None, Some(url)) if !(url.starts_with("http://") || url.starts_with("https://")) => {
                return Err(bad(&at, "has a url that is neither http:// nor https://"));
            }
            (Some(_), None) | (None, Some(_)) => {}
            (Some(_), Some(_)) | (None, None) => {
                return Err(bad(&at, "has not exactly one of command and url"));
            }
        }
        let texts = self.command.iter().chain(&self.args).chain(&self.url);
        if texts
            .chain(self.headers.iter().flat_map(|(name, value)| [name, value]))
            .any(|text| text.contains('\0'))
        {
            return Err(bad(&at, "has a NUL character, which no argument can have"));
        }
        environment(&format!("{at}.env"), &self.env)
    }
}

impl super::Limits {
    fn validate(&self) -> Result<(), TaskError> {
        for (key, value) in [
            ("boot_timeout_s", self.boot_timeout_s),
            ("setup_timeout_s", self.setup_timeout_s),
            ("agent_timeout_s", self.agent_timeout_s),
            ("verify_timeout_s", self.verify_timeout_s),
            ("collect_timeout_s", self.collect_timeout_s),
        ] {
            if !(value > 0.0 && value <= TIMEOUT_MAX_S) {
                let problem = format!("is {value}, not over 0 and at most {TIMEOUT_MAX_S} seconds");
                return Err(bad(&format!("limits.{key}"), problem));
            }
        }
        if !(self.cpus > 0.0 && self.cpus <= 4096.0) {
            return Err(bad(
                "limits.cpus",
                format!("is {}, not over 0 and at most 4096", self.cpus),
            ));
        }
        for (key, value, least, most) in [
            ("memory_mb", self.memory_mb, 16, 16 << 20),
            ("pids", self.pids, 8, 1 << 22),
        ] {
            if !(least..=most).contains(&value) {
                return Err(bad(
                    &format!("limits.{key}"),
                    format!("is {value}, not from {least} to {most}"),
                ));
            }
        }
        for (key, value) in [("max_wall_s", self.max_wall_s), ("max_cost", self.max_cost)] {
            if let Some(value) = value.filter(|value| !(*value > 0.0 && value.is_finite())) {
                return Err(bad(
                    &format!("limits.{key}"),
                    format!("is {value}, not a number over 0"),
                ));
            }
        }
        for (key, value) in [
            ("max_calls", self.max_calls),
            ("max_prompt_tokens", self.max_prompt_tokens),
            ("max_completion_tokens", self.max_completion_tokens),
        ] {
            if value == Some(0) {
                return Err(bad(
                    &format!("limits.{key}"),
                    "is 0, with which nothing can be done",
                ));
            }
        }
        Ok(())
    }
}

impl Sampling {
    /// Checks that each parameter is a number that samplers know. `path` is where they stand, for errors.
    ///
    /// # Errors
    /// The first that is not, with its place.
    pub fn validate(&self, path: &str) -> Result<(), TaskError> {
        for (key, value, least, most) in [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, f64::MIN_POSITIVE, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            (
                "repetition_penalty",
                self.repetition_penalty,
                f64::MIN_POSITIVE,
                100.0,
            ),
        ] {
            if let Some(value) = value
                && !(least..=most).contains(&value)
            {
                let least = if least == f64::MIN_POSITIVE {
                    "over 0".into()
                } else {
                    format!("at least {least}")
                };
                return Err(bad(
                    &format!("{path}.{key}"),
                    format!("is {value}, not {least} and at most {most}"),
                ));
            }
        }
        if let Some(top_k) = self.top_k
            && top_k < -1
        {
            return Err(bad(
                &format!("{path}.top_k"),
                format!("is {top_k}, not -1, 0 or more"),
            ));
        }
        Ok(())
    }
}

fn commands(key: &str, commands: &[String]) -> Result<(), TaskError> {
    for (index, command) in commands.iter().enumerate() {
        if command.contains('\0') {
            return Err(bad(
                &format!("{key}[{index}]"),
                "has a NUL character, which no command can have",
            ));
        }
        // The kernel's limit for one argument; a longer one fails with a message that explains nothing.
        if command.len() >= 128 * 1024 {
            let problem = format!(
                "has {} bytes, over the limit of 131071; put it into `files`",
                command.len()
            );
            return Err(bad(&format!("{key}[{index}]"), problem));
        }
    }
    Ok(())
}

fn file_path(at: &str, path: &str) -> Result<(), TaskError> {
    if path.is_empty() || path.ends_with('/') {
        return Err(bad(at, "names no file"));
    }
    if path.contains('\0') {
        return Err(bad(at, "has a NUL character in its path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(bad(
            at,
            "has `..` in its path; write it absolute, or below the working directory",
        ));
    }
    Ok(())
}

fn output_path(at: &str, path: &str) -> Result<(), TaskError> {
    if path.contains('\0') {
        return Err(bad(at, "has a NUL character in its path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(bad(
            at,
            "has `..` in its path; write it absolute, or below the working directory",
        ));
    }
    if path.is_empty() || (path.starts_with('/') && path.split('/').all(|part| matches!(part, "" | "."))) {
        return Err(bad(at, "names no file and no directory that can be copied"));
    }
    Ok(())
}

fn environment(path: &str, variables: &BTreeMap<String, String>) -> Result<(), TaskError> {
    for (name, value) in variables {
        let at = format!("{path}.\"{name}\"");
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(bad(&at, "is not a name of an environment variable"));
        }
        if value.contains('\0') {
            return Err(bad(
                &at,
                "has a NUL character, which no environment variable can have",
            ));
        }
    }
    Ok(())
}

fn bad(path: &str, problem: impl Into<String>) -> TaskError {
    TaskError::BadValue {
        path: path.into(),
        problem: problem.into(),
    }
}
