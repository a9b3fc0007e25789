//! Sandboxes that are ready before they are asked for: which backends have them, by options, environment and file.

use crate::environment::names;
use crate::error::Failure;
use crate::exit::Exit;
use crate::workspace::Context;
use dressage_sandbox::{PoolConfig, Pools};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Seconds that a sandbox waits for its use where nobody says.
const DEFAULT_MAX_AGE_S: f64 = 600.0;

/// What commands take.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct WarmArguments {
    /// Keep so many sandboxes of a backend ready, like those that rollouts had before; repeatable.
    #[arg(long, value_name = "NAME=COUNT", value_parser = count, help_heading = "Sandbox")]
    pub warm: Vec<(String, usize)>,
    /// Seconds after which a sandbox that was kept ready and not used ends; default 600.
    #[arg(long, value_name = "SECONDS", help_heading = "Sandbox")]
    pub warm_max_age: Option<f64>,
}

fn count(text: &str) -> Result<(String, usize), String> {
    let (name, count) = text.split_once('=').ok_or("is not NAME=COUNT")?;
    let count = count.parse().map_err(|_| format!("`{count}` is not a count"))?;
    Ok((name.trim().to_owned(), count))
}

/// The pools: the file's, under those of the environment, under those of the options, name by name.
///
/// # Errors
/// A backend that there is not, or what is no count or no time.
pub fn pools(arguments: &WarmArguments, context: &Context) -> Result<Pools, Failure> {
    let defaults = &context.config.defaults;
    let variable = |name| context.environment.get(name).filter(|text| !text.is_empty());
    let mut counts = defaults.warm.clone();
    for text in variable(names::WARM).into_iter().flat_map(|text| text.split(',')) {
        let (name, count) =
            count(text).map_err(|reason| Failure::input(format!("`{text}` of {}: {reason}", names::WARM)))?;
        counts.insert(name, count);
    }
    counts.extend(arguments.warm.iter().cloned());
    let from_environment = match variable(names::WARM_MAX_AGE) {
        None => None,
        Some(text) => Some(
            text.parse()
                .map_err(|_| Failure::input(format!("`{text}` of {} is no time", names::WARM_MAX_AGE)))?,
        ),
    };
    let max_age_s = arguments
        .warm_max_age
        .or(from_environment)
        .or(defaults.warm_max_age_s)
        .unwrap_or(DEFAULT_MAX_AGE_S);
    let max_age = Duration::try_from_secs_f64(max_age_s)
        .ok()
        .filter(|max_age| !max_age.is_zero())
        .ok_or_else(|| {
            Failure::input(format!(
                "`{max_age_s}` of `--warm-max-age` or `warm_max_age_s` is no time"
            ))
        })?;
    let mut configs = BTreeMap::new();
    for (name, count) in counts {
        dressage_sandbox::by_name(&name)
            .map_err(|error| Failure::from_error(Exit::BadInput, &error).maybe_hint(error.hint()))?;
        if let Some(size) = NonZeroUsize::new(count) {
            configs.insert(name, PoolConfig { size, max_age });
        }
    }
    Ok(Pools::new(configs))
}
