//! The catalogue of endpoints, and how a choice becomes one: explicit argument, then environment, then configuration
//! file, then the catalogue's default. Names, variables and defaults are those of OpenEnv's `opencode_env`.
//!
//! Keys stay with the URL they were configured with. A URL given as an argument gets a key only where the caller names
//! one, or where it has the very origin of the endpoint named beside it; and a key of the process's environment does
//! not follow a URL that a `.env` file brought in.

/// Endpoints that are known by name.
mod catalogue;

/// Why a choice makes no endpoint.
mod error;

/// From a choice to an endpoint.
mod choice;

/// URLs, and whose they are.
mod urls;

/// Keys, and where they come from.
mod keys;

/// What the configuration file says besides.
mod settings;

/// What probes found out, kept from one process to the next.
pub mod probes;

pub use catalogue::{DEMO, SHORTHANDS, catalogue_names, known_names, shorthand};
pub use choice::{Choice, Chosen, is_listed, resolve};
pub use error::EndpointError;

#[cfg(test)]
mod tests;
