//! `dressage import`: rollouts that were exported elsewhere.

use super::export::{bar, counted};
use super::validate::{Lines, Place};
use crate::error::Failure;
use crate::exit::Exit;
use crate::workspace::{Context, store_failure};
use dressage_store::{Imported, Store};
use dressage_wire::export::native::Document;
use dressage_wire::validate::{Findings, line};

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Files of native rows, as `export` writes them: lines of JSON, also compressed, or Parquet; also in
    /// stores, as s3://. `-` is standard input.
    #[arg(required = true)]
    files: Vec<String>,
}

/// Takes them in. Each is checked as `validate` does; one that is damaged is not taken, and nothing after it.
///
/// # Errors
/// Where a file cannot be read or a row of it is damaged, or the database cannot be written.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let store = Store::open(&context.paths.data)
        .await
        .map_err(|error| store_failure(&error))?;
    let (mut taken, mut there) = (0, 0);
    let bar = bar(&context.terminal);
    for file in &arguments.files {
        let mut lines = Lines::start(file);
        while let Some((place, text)) = lines.next().await? {
            let checking = tokio::task::spawn_blocking(move || read(&place, &text));
            let document = checking
                .await
                .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))??;
            let imported = store.import(&document).await.map_err(|error| Failure {
                exit: Exit::BadInput,
                ..store_failure(&error)
            })?;
            match imported {
                Imported::Taken(_) => taken += 1,
                Imported::There(_) => there += 1,
            }
            bar.set_message(format!("{} taken in", counted(taken, "rollout")));
        }
    }
    bar.finish_and_clear();
    store.close().await;
    let mut line = format!("{} taken in", counted(taken, "rollout"));
    if there > 0 {
        line.push_str(&format!(
            "; {there} were there already, and were left as they were"
        ));
    }
    context.terminal.note(line);
    Ok(Exit::Done)
}

/// A row as a document, if it is sound.
fn read(place: &Place, text: &[u8]) -> Result<Document<'static>, Failure> {
    let mut findings = Findings::default();
    line(text, &mut findings);
    if let Some(found) = findings.list.first() {
        let damage = format!("{place}: {}: {}", found.damage, found.message);
        return Err(Failure::input(damage).hint("`dressage validate` lists everything that is wrong in it"));
    }
    serde_json::from_slice(text).map_err(|error| {
        Failure::input(format!("{place}: it is no native row"))
            .cause(error.to_string())
            .hint("`dressage export --shape native` writes what can be taken in")
    })
}
