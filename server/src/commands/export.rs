//! `dressage export`: rollouts as rows for trainers.

/// Where rows go.
mod destination;

use crate::error::Failure;
use crate::exit::Exit;
use crate::render::thousands;
use crate::selection::SelectionArguments;
use crate::terminal::Terminal;
use crate::workspace::{Context, store_failure};
use destination::{Destination, Opened, Writer};
use dressage_store::{Export, ExportCounts, ExportFilter, Format, RowWriter, Store, StoreError, Wanted};
use dressage_wire::export::Shape;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often progress is looked at.
const TICK: Duration = Duration::from_millis(200);

/// The longest that an interrupted export takes to leave nothing in a store.
const ABANDON: Duration = Duration::from_secs(20);

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Rollouts, by id or the beginning of it; `last` for the latest. All that are finished if none is named.
    ids: Vec<String>,
    /// What a row is: native (a rollout, nothing lost), trl (a rollout), verl (a sequence), chat (a conversation),
    /// atif (a conversation, in Harbor's format).
    #[arg(long, value_name = "SHAPE", default_value_t)]
    shape: Shape,
    /// How rows are written: jsonl or parquet. By default as the name of the output says, else jsonl.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Only rollouts that pass, such as `reward>=0.5 agent=opencode -flag=truncated`; docs/export.md has all keys.
    #[arg(long, value_name = "TERMS", default_value = "")]
    filter: ExportFilter,
    /// A file, a folder (with a slash behind its name, where it is not there yet), or an object in a store: s3://, gs://,
    /// az://, with keys from the environment. Standard output if unset. A name that ends in .zst is compressed.
    #[arg(short, long, visible_alias = "to", value_name = "PATH")]
    output: Option<String>,
    /// What is trained.
    #[command(flatten)]
    selection: SelectionArguments,
}

/// Writes the rows.
///
/// # Errors
/// Where there is no such rollout, one cannot be read, or the output cannot be written; then there is no output.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let destination = Destination::of(arguments.output.as_deref(), arguments.shape, arguments.format)?;
    let store = Store::open_read_only(&context.paths.data)
        .await
        .map_err(|error| input_failure(&error))?;
    let wanted = match arguments.ids.as_slice() {
        [] => Wanted::All,
        named => {
            let mut ids = Vec::new();
            for name in named {
                ids.push(super::find(&store, name).await?);
            }
            Wanted::Ids(ids)
        }
    };
    let export = Export {
        wanted,
        filter: arguments.filter.clone(),
        selection: (&arguments.selection).into(),
    };
    let counts = Arc::new(ExportCounts::default());
    let Opened { writer, pending } = destination.open().await?;
    let written = writer.written.clone();
    let rows = RowWriter::new(
        writer,
        arguments.shape,
        destination.format,
        destination.compression,
    )
    .map_err(|error| destination.failure(&error))?;
    let bar = bar(&context.terminal);
    let exporting = store.export(export, rows, counts.clone());
    tokio::pin!(exporting);
    let done = loop {
        tokio::select! {
            // What was written so far is dropped, and with it the file that is not whole.
            _ = tokio::signal::ctrl_c() => break None,
            done = &mut exporting => break Some(done),
            () = tokio::time::sleep(TICK) => bar.set_message(progress(&counts, written.load(Ordering::Relaxed))),
        }
    };
    bar.finish_and_clear();
    let writer: Writer = match done {
        Some(Ok(writer)) => writer,
        Some(Err(error)) => {
            let failure = match &error {
                StoreError::Export { source, .. } | StoreError::ExportEnd(source) => {
                    destination.failure(source)
                }
                error => store_failure(error),
            };
            return Err(destination.abandon(pending).await.unwrap_or(failure));
        }
        None => {
            let abandoned = tokio::time::timeout(ABANDON, destination.abandon(pending)).await;
            if let Ok(Some(failure)) = abandoned {
                context.terminal.note(failure.render());
            }
            return Ok(Exit::Interrupted);
        }
    };
    store.close().await;
    let bytes = written.load(Ordering::Relaxed);
    destination.keep(writer, pending).await?;
    let (rollouts, without_rows, rows) = counts.written();
    if destination.is_named() {
        let mut line = format!(
            "{} of {}: {}, {}, {} bytes",
            destination.name,
            arguments.shape,
            counted(rollouts, "rollout"),
            counted(rows, "row"),
            thousands(bytes)
        );
        if without_rows > 0 {
            line.push_str(&format!("; {} without a row", counted(without_rows, "rollout")));
        }
        context.terminal.note(line);
    }
    Ok(Exit::Done)
}

/// A failure of the store, where what was asked for may be wrong.
fn input_failure(error: &StoreError) -> Failure {
    let exit = match error {
        StoreError::NotFound { .. } | StoreError::Ambiguous { .. } | StoreError::Missing { .. } => {
            Exit::BadInput
        }
        _ => Exit::MachineLacks,
    };
    Failure {
        exit,
        ..store_failure(error)
    }
}

fn progress(counts: &ExportCounts, bytes: u64) -> String {
    let (rollouts, _, rows) = counts.written();
    format!(
        "{}, {}, {} MB",
        counted(rollouts, "rollout"),
        counted(rows, "row"),
        thousands(bytes / 1_000_000)
    )
}

/// A number of things.
pub fn counted(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        number => format!("{} {thing}s", thousands(number)),
    }
}

/// A line that shows how far something is whose end is not known.
pub fn bar(terminal: &Terminal) -> ProgressBar {
    if !terminal.shows_bars() {
        return ProgressBar::hidden();
    }
    let bar = terminal.bars.add(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}
