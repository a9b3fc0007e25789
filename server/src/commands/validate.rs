//! `dressage validate`: whether stored rollouts and exported files are what a trainer relies on.

use super::export::{bar, counted};
use crate::error::Failure;
use crate::exit::Exit;
use crate::objects::ObjectPlace;
use crate::render::thousands;
use crate::terminal::{BAD, one_line, styled};
use crate::workspace::{Context, store_failure};
use dressage_store::{ListFilter, ParquetError, RolloutState, Store, read_parquet};
use dressage_wire::ids::RolloutId;
use dressage_wire::trajectory::Selection;
use dressage_wire::validate::{Finding, Findings, Tally, line, native};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use tokio::sync::mpsc;

/// Rollouts that a list is read by.
const PAGE: u32 = 500;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Rollouts, by id or the beginning of it (`last` for the latest), and files: exports of any shape, as lines of JSON,
    /// also compressed, or Parquet, or the trajectory file of a rollout; also in stores, as s3://. `-` is standard input.
    /// All rollouts that were begun if none is named.
    targets: Vec<String>,
    /// Write a JSON object a finding, and one that sums up.
    #[arg(long)]
    json: bool,
}

/// A line of a file, or a row of a Parquet file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file, as it was named.
    file: String,
    /// Its number, from 1.
    line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A finding as `--json` writes it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    place: Option<&'a Place>,
    #[serde(flatten)]
    finding: &'a Finding,
}

/// What it comes to, as `--json` writes it.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    tally: Tally,
    findings: u64,
}

/// Checks them.
///
/// # Errors
/// Where there is no such rollout or file, or it cannot be read. That something is damaged is no error, and exit 5.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let mut report = Report {
        context,
        json: arguments.json,
        findings: 0,
        tally: Tally::default(),
        bar: bar(&context.terminal),
    };
    let (files, ids): (Vec<&String>, Vec<&String>) = arguments
        .targets
        .iter()
        .partition(|target| *target == "-" || ObjectPlace::is_url(target) || Path::new(target).exists());
    if !ids.is_empty() || files.is_empty() {
        stored(&ids, context, &mut report).await?;
    }
    for file in files {
        let mut lines = Lines::start(file);
        let mut findings = Findings::default();
        while let Some((place, text)) = lines.next().await? {
            let checked = tokio::task::spawn_blocking(move || {
                line(&text, &mut findings);
                findings
            });
            findings = checked
                .await
                .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
            report.take(Some(&place), &mut findings)?;
        }
    }
    report.end()
}

/// Checks rollouts of the store.
async fn stored(names: &[&String], context: &Context, report: &mut Report<'_>) -> Result<(), Failure> {
    let store = Store::open_read_only(&context.paths.data).await;
    let store = store.map_err(|error| Failure {
        exit: if names.is_empty() {
            Exit::MachineLacks
        } else {
            Exit::BadInput
        },
        ..store_failure(&error)
    })?;
    for name in names {
        let id = super::find(&store, name).await?;
        check(&store, id, report).await?;
    }
    let mut filter = ListFilter {
        states: RolloutState::ALL.into_iter().skip(1).collect(),
        limit: Some(PAGE),
        ..ListFilter::default()
    };
    while names.is_empty() {
        let rows = store.list(&filter).await.map_err(|error| store_failure(&error))?;
        for row in &rows {
            check(&store, row.id, report).await?;
        }
        filter.after = rows.last().map(|row| row.id);
        if filter.after.is_none() {
            break;
        }
    }
    store.close().await;
    Ok(())
}

async fn check(store: &Store, id: RolloutId, report: &mut Report<'_>) -> Result<(), Failure> {
    let checking = store.with_source(id, Selection::default(), |source| {
        let mut findings = Findings::default();
        native(&source.document(), &mut findings);
        findings
    });
    let mut findings = checking.await.map_err(|error| store_failure(&error))?;
    report.take(None, &mut findings)
}

/// Tells of findings as they come.
struct Report<'a> {
    context: &'a Context,
    json: bool,
    findings: u64,
    tally: Tally,
    bar: indicatif::ProgressBar,
}

impl Report<'_> {
    fn take(&mut self, place: Option<&Place>, findings: &mut Findings) -> Result<(), Failure> {
        let Tally {
            rows,
            calls,
            trainable_calls,
            sequences,
            tokens,
            trained_tokens,
        } = std::mem::take(&mut findings.tally);
        self.tally.rows += rows;
        self.tally.calls += calls;
        self.tally.trainable_calls += trainable_calls;
        self.tally.sequences += sequences;
        self.tally.tokens += tokens;
        self.tally.trained_tokens += trained_tokens;
        self.bar.set_message(format!(
            "{}, {} tokens, {}",
            counted(self.tally.rows, "row"),
            thousands(self.tally.tokens),
            counted(self.findings, "finding")
        ));
        let (list, more) = findings.take();
        self.findings += list.len() as u64 + more;
        let terminal = &self.context.terminal;
        for finding in &list {
            if self.json {
                let line = serde_json::to_string(&Shown { place, finding });
                terminal.line(line.map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?);
            } else {
                let within = finding.place.to_string();
                let place = place.map(ToString::to_string).into_iter();
                let place: Vec<String> = place.chain((!within.is_empty()).then_some(within)).collect();
                // A file is not trusted.
                terminal.line(format!(
                    "{}: {}: {}",
                    one_line(&place.join(": "), 300),
                    styled(BAD, finding.damage),
                    one_line(&finding.message, 500)
                ));
            }
        }
        if more > 0 && !self.json {
            terminal.line(format!("… and {} of the same", counted(more, "finding")));
        }
        Ok(())
    }

    fn end(self) -> Result<Exit, Failure> {
        self.bar.finish_and_clear();
        let tally = self.tally;
        if self.json {
            let summary = serde_json::to_string(&Summary {
                tally,
                findings: self.findings,
            });
            let line = summary.map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
            self.context.terminal.line(line);
        } else {
            let sound = if self.findings == 0 { "sound" } else { "damaged" };
            self.context.terminal.note(format!(
                "{sound}: {}, {}, {}, {} tokens, {} of them trained, {}",
                counted(tally.rows, "row"),
                counted(tally.calls, "call"),
                counted(tally.sequences, "sequence"),
                thousands(tally.tokens),
                thousands(tally.trained_tokens),
                counted(self.findings, "finding")
            ));
        }
        Ok(if self.findings == 0 {
            Exit::Done
        } else {
            Exit::Damaged
        })
    }
}

/// The lines of a file, read ahead in a thread of their own.
pub struct Lines {
    lines: mpsc::Receiver<Result<(Place, Vec<u8>), Failure>>,
}

impl Lines {
    /// Begins to read a file, an object in a store, or standard input for `-`.
    #[must_use]
    pub fn start(name: &str) -> Self {
        let (sender, lines) = mpsc::channel(2);
        let name = name.to_owned();
        tokio::task::spawn_blocking(move || {
            let each = |line: u64, text: &[u8]| {
                let file = if name == "-" {
                    "standard input".to_owned()
                } else {
                    name.clone()
                };
                sender
                    .blocking_send(Ok((Place { file, line }, text.to_vec())))
                    .is_ok()
            };
            if let Err(failure) = read(&name, each) {
                // Where nobody listens any more, another failure came first.
                let _ = sender.blocking_send(Err(failure));
            }
        });
        Self { lines }
    }

    /// The next line.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub async fn next(&mut self) -> Result<Option<(Place, Vec<u8>)>, Failure> {
        self.lines.recv().await.transpose()
    }
}

/// Gives each line to `each`, as long as it says so.
fn read(name: &str, mut each: impl FnMut(u64, &[u8]) -> bool) -> Result<(), Failure> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        let mut failure = Failure::input(format!("`{name}` could not be read")).cause(error.to_string());
        failure.causes.extend(error.source().map(ToString::to_string));
        failure
    };
    if name == "-" {
        return read_lines(io::stdin().lock(), &mut each).map_err(|error| failed(&error));
    }
    let mut file = if ObjectPlace::is_url(name) {
        // This is a thread that may wait.
        tokio::runtime::Handle::current().block_on(async { ObjectPlace::of(name)?.fetch().await })?
    } else {
        File::open(name).map_err(|error| failed(&error))?
    };
    let mut magic = [0; 4];
    let length = read_up_to(&mut file, &mut magic).map_err(|error| failed(&error))?;
    let begin = magic.get(..length).unwrap_or_default().to_vec();
    if begin == *b"PAR1" {
        return read_parquet(file, each).map_err(|error: ParquetError| failed(&error));
    }
    let whole = Cursor::new(begin).chain(file);
    read_lines(whole, &mut each).map_err(|error| failed(&error))
}

fn read_up_to(file: &mut impl Read, buffer: &mut [u8; 4]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            count => length += count,
        }
    }
    Ok(length)
}

/// Lines, also compressed with zstd. A document that is written over several lines is one.
fn read_lines(input: impl Read, each: &mut impl FnMut(u64, &[u8]) -> bool) -> io::Result<()> {
    const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    let mut buffered = BufReader::with_capacity(256 << 10, input);
    if buffered.fill_buf()?.starts_with(ZSTD) {
        let decoder = zstd::stream::read::Decoder::with_buffer(buffered)?;
        return split_lines(BufReader::with_capacity(256 << 10, decoder), each);
    }
    split_lines(buffered, each)
}

fn split_lines(mut input: impl BufRead, each: &mut impl FnMut(u64, &[u8]) -> bool) -> io::Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let begins_document = number == 1 && line.trim_ascii_end() == b"{";
        if begins_document {
            input.read_to_end(&mut line)?;
        }
        let text = line.trim_ascii();
        if !text.is_empty() && !each(number, text) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(input: &[u8]) -> Vec<(u64, String)> {
        let mut lines = Vec::new();
        let each = &mut |number, text: &[u8]| {
            lines.push((number, String::from_utf8(text.to_vec()).unwrap()));
            true
        };
        read_lines(input, each).unwrap();
        lines
    }

    #[test]
    fn lines_are_read_plain_compressed_and_as_one_document() {
        let expected = [(1, "{\"a\":1}".to_owned()), (3, "{\"b\":2}".to_owned())];
        let text = b"{\"a\":1}\r\n\n{\"b\":2}";
        assert_eq!(lines_of(text), expected);
        assert_eq!(lines_of(&zstd::encode_all(&text[..], 1).unwrap()), expected);
        let document = "{\n  \"a\": 1\n}";
        assert_eq!(
            lines_of(format!("{document}\n").as_bytes()),
            [(1, document.to_owned())]
        );
        assert!(lines_of(b"").is_empty());
    }
}
