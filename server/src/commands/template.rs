//! `dressage template build|context`: images with agents and `dressage-tap` in them.

use crate::error::Failure;
use crate::exit::Exit;
use crate::interrupt;
use crate::terminal::{FAINT, one_line, styled};
use crate::workspace::Context;
use clap::builder::PossibleValuesParser;
use dressage_rollout::agents::Installed;
use dressage_sandbox::bake::{BakeError, BakeEvent, Recipe, write_context};
use dressage_sandbox::{Asset, SandboxError};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Build an image for a backend, and show what its build says.
    Build {
        /// The backend: e2b builds a template there, docker an image in the engine.
        #[arg(long, value_name = "NAME", default_value = "e2b", value_parser = PossibleValuesParser::new(bakers()))]
        backend: String,
        #[command(flatten)]
        what: What,
        /// Processors of its sandboxes at e2b, 2 if unset; those of docker have what their task says.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        cpus: Option<u32>,
        /// Memory of its sandboxes at e2b, 2048 if unset.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        memory_mb: Option<u32>,
        /// Write a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Write what an image is built of into a folder, for any builder: a Dockerfile, and archives.
    Context {
        /// The folder; made where it is missing.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        #[command(flatten)]
        what: What,
    },
}

/// Of what it is built.
#[derive(Clone, Debug, clap::Args)]
struct What {
    /// What it is called; docker puts `dressage/` before a name without a slash.
    #[arg(long, value_name = "NAME", default_value = "opencode-rl", value_parser = name)]
    name: String,
    /// An agent that is installed here; of another than the pinned version: NAME@VERSION. Repeatable.
    #[arg(long, value_name = "NAME", default_value = "opencode")]
    agent: Vec<String>,
    /// The container image that it is made from [default: e2bdev/base at e2b, python:3.12 elsewhere].
    #[arg(long, value_name = "IMAGE")]
    from: Option<String>,
}

/// The backends that images are built for.
fn bakers() -> Vec<&'static str> {
    let rows = dressage_sandbox::registry().iter();
    rows.filter(|entry| entry.baker.is_some())
        .map(|entry| entry.name)
        .collect()
}

/// Takes a name that can be one at every builder.
fn name(text: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.:/".contains(&byte);
    if text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err("it is not of lower-case letters, digits and -_.:/")
}

/// Does it.
///
/// # Errors
/// Where an agent is not installed, or the image cannot be built.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    match &arguments.command {
        Command::Build {
            backend,
            what,
            cpus,
            memory_mb,
            json,
        } => {
            let recipe = Recipe {
                cpus: *cpus,
                memory_mb: *memory_mb,
                ..recipe(what, context)?
            };
            build(context, backend, &recipe, *json).await
        }
        Command::Context { folder, what } => write(context, folder, &recipe(what, context)?).await,
    }
}

/// What is built, of agents that are there.
fn recipe(what: &What, context: &Context) -> Result<Recipe, Failure> {
    let agents = context.agents();
    let mut contents = Vec::new();
    for named in &what.agent {
        let (name, version) = match named.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (named.as_str(), None),
        };
        let agent = agents.get(name).map_err(|error| super::agents::failure(&error))?;
        let installed = agent
            .installed(&context.paths.cache, version)
            .map_err(|error| super::agents::failure(&error))?;
        let Installed {
            version,
            directory: Some(host_path),
            ..
        } = installed
        else {
            return Err(Failure::input(format!("agent `{name}` has nothing to bake in")));
        };
        contents.push(Asset {
            name: format!("{name} {version}"),
            host_path,
        });
    }
    Ok(Recipe {
        name: what.name.clone(),
        from: what.from.clone(),
        contents,
        cpus: None,
        memory_mb: None,
    })
}

/// What was built, for programs.
#[derive(Debug, Serialize)]
struct Told<'a> {
    backend: &'a str,
    /// By which tasks name it.
    image: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build: Option<&'a str>,
    contents: Vec<&'a str>,
    sent_bytes: u64,
    duration_ms: u64,
}

async fn build(context: &Context, backend: &str, recipe: &Recipe, json: bool) -> Result<Exit, Failure> {
    let entry = dressage_sandbox::by_name(backend).map_err(|error| input(&error))?;
    let Some(make) = entry.baker else {
        return Err(Failure::input(format!("images are not built for `{backend}`")));
    };
    let config = super::sandboxes::backends(context)?;
    let baker = make(&config)
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error).maybe_hint(error.hint()))?;
    let begun = Instant::now();
    let unattended = Mutex::new("no build was begun".to_owned());
    let hear = |event: BakeEvent<'_>| {
        let terminal = &context.terminal;
        match event {
            BakeEvent::Sending { what, bytes } => {
                terminal.note(format!("sending {what}: {:.1} MB", bytes as f64 / 1e6));
            }
            BakeEvent::IsThere { what } => terminal.note(format!("{what} is there already")),
            BakeEvent::Building { unattended: told } => {
                terminal.note(format!("building {}", recipe.name));
                told.clone_into(&mut unattended.lock().unwrap_or_else(PoisonError::into_inner));
            }
            BakeEvent::Line(line) => terminal.note(styled(FAINT, one_line(line, LINE))),
        }
    };
    let mut signals =
        interrupt::Signals::new().map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
    let built = tokio::select! {
        biased;
        () = signals.next() => {
            let told = unattended.lock().unwrap_or_else(PoisonError::into_inner);
            context.terminal.note(format!("stopped: {told}"));
            return Ok(Exit::Interrupted);
        }
        built = baker.bake(recipe, &hear) => built.map_err(|error| failure(&error))?,
    };
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    if json {
        let contents = recipe.contents.iter().map(|asset| asset.name.as_str());
        context.terminal.line(super::json(&Told {
            backend,
            image: &built.image,
            template: built.template.as_deref(),
            build: built.build.as_deref(),
            contents: contents.chain(["dressage-tap"]).collect(),
            sent_bytes: built.sent_bytes,
            duration_ms,
        })?);
        return Ok(Exit::Done);
    }
    context.terminal.line(format!("{} is built", built.image));
    context.terminal.note(styled(
        FAINT,
        format!("dressage run --sandbox {backend} --image {} ...", built.image),
    ));
    Ok(Exit::Done)
}

/// The longest line of a build's log that is shown.
const LINE: usize = 400;

async fn write(context: &Context, folder: &Path, recipe: &Recipe) -> Result<Exit, Failure> {
    let cache = &context.paths.cache;
    let tap = super::sandboxes::tap_binary(context)?;
    let written = write_context(cache, &tap, recipe, folder)
        .await
        .map_err(|error| failure(&error))?;
    for path in written {
        context.terminal.line(path.display());
    }
    Ok(Exit::Done)
}

fn input(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::from_error(Exit::BadInput, error)
}

fn failure(error: &BakeError) -> Failure {
    let exit = match error {
        BakeError::Name(_)
        | BakeError::Occupied(_)
        | BakeError::Backend(SandboxError::Unsupported { .. }) => Exit::BadInput,
        _ => Exit::MachineLacks,
    };
    Failure::from_error(exit, error).maybe_hint(error.hint())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_at_every_builder() {
        for plain in ["opencode-rl", "team/a_b.c:v1", "0"] {
            assert_eq!(name(plain).unwrap(), plain);
        }
        for odd in ["", "A", "-x", "a b", "a\n", "ä", "../x"] {
            assert!(name(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn images_are_built_where_a_backend_says_so() {
        assert_eq!(bakers(), ["docker", "e2b"]);
    }
}
