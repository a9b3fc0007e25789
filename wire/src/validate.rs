//! Whether trajectories are what they must be: those that are stored, and those that were exported.
//!
//! What is checked is what a trainer relies on. Nothing is mended. A finding names its kind of damage and its place; the
//! file and line are known to whoever reads them. What an endpoint did wrong is no damage where the call says so by a flag.

/// Kinds of damage, and where it is.
mod finding;

/// Rollouts with everything.
mod native;

/// Rows for trainers.
mod rows;

/// Documents in Harbor's format.
mod atif;

pub use atif::atif;
pub use finding::{Damage, Finding, Findings, Place, Tally};
pub use native::native;
pub use rows::{chat, trl, verl};

use crate::export::atif::{ATIF_VERSIONS, Trajectory};
use crate::export::{Shape, native::Document};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Above zero by no more than this, a log-probability is zero that was rounded.
pub const ROUNDING: f64 = 1e-6;

/// What a line says of itself.
#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
    schema_version: Option<Version>,
}

/// That of a schema of ours, or of ATIF.
#[derive(Deserialize, PartialEq)]
#[serde(untagged)]
enum Version {
    Number(u32),
    Name(String),
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Checks a line of an export, or a whole native document: JSON that names its schema.
pub fn line(text: &[u8], findings: &mut Findings) -> Option<Shape> {
    let nowhere = Place::default();
    let head: Head = match serde_json::from_slice(text) {
        Ok(head) => head,
        Err(error) => {
            findings.add(Damage::Unreadable, nowhere, error.to_string());
            return None;
        }
    };
    if let (None, Some(Version::Name(version))) = (&head.schema, &head.schema_version)
        && version.starts_with(ATIF_VERSIONS)
    {
        if let Some(document) = read::<Trajectory>(text, findings) {
            atif(&document, findings);
        }
        return Some(Shape::Atif);
    }
    let named = Shape::ALL
        .into_iter()
        .filter(|shape| *shape != Shape::Atif)
        .find(|shape| head.schema.as_deref() == Some(shape.schema()));
    let Some(shape) = named else {
        let schema = head.schema.unwrap_or_default();
        findings.add(
            Damage::UnknownSchema,
            nowhere,
            format!("the schema `{schema}` is not known"),
        );
        return None;
    };
    if head.schema_version != Some(Version::Number(shape.schema_version())) {
        let found = head
            .schema_version
            .map_or("none".to_owned(), |version| version.to_string());
        let message = format!(
            "{} has version {found}, and {} is read",
            shape.schema(),
            shape.schema_version()
        );
        findings.add(Damage::UnknownSchema, nowhere, message);
        return None;
    }
    match shape {
        Shape::Native => {
            if let Some(document) = read::<Document<'_>>(text, findings) {
                native(&document, findings);
            }
        }
        Shape::Verl => {
            if let Some(row) = read(text, findings) {
                verl(&row, findings);
            }
        }
        Shape::Trl => {
            if let Some(row) = read(text, findings) {
                trl(&row, findings);
            }
        }
        Shape::Chat => {
            if let Some(row) = read(text, findings) {
                chat(&row, findings);
            }
        }
        // It names no schema, and was read above.
        Shape::Atif => {}
    }
    Some(shape)
}

fn read<T: DeserializeOwned>(text: &[u8], findings: &mut Findings) -> Option<T> {
    let read = serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(text));
    read.map_err(|error| findings.add(Damage::Unreadable, Place::default(), error.to_string()))
        .ok()
}

#[cfg(test)]
mod tests;
