//! Where output goes: results to standard output, everything else to standard error.
//!
//! What an agent wrote is not trusted: on its way to a terminal its control characters are escaped, or it could rewrite
//! the screen, the clipboard and the title of the window. A closed standard output ends the output, not the work.

use crate::error::Failure;
use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use indicatif::MultiProgress;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, OnceLock};

/// Bold.
pub const STRONG: Style = Style::new().bold();
/// Less important.
pub const FAINT: Style = Style::new().dimmed();
/// Good.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Bad.
pub const BAD: Style = AnsiColor::Red.on_default();
/// Worth a look.
pub const NOTE: Style = AnsiColor::Yellow.on_default();

/// How much is said besides results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chatter {
    /// Progress and notes.
    Normal,
    /// Nothing.
    Quiet,
}

/// Whether an agent's control characters are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escapes {
    /// They are.
    Escaped,
    /// They go out as they came.
    Raw,
}

/// The two streams.
#[derive(Clone, Debug)]
pub struct Terminal {
    /// Bars of progress; everything that is written goes past them.
    pub bars: MultiProgress,
    color: ColorChoice,
    chatter: Chatter,
    /// Why nothing more goes to standard output, once that is so.
    closed: Arc<OnceLock<io::Error>>,
}

impl Terminal {
    /// The streams of this process.
    #[must_use]
    pub fn new(color: ColorChoice, chatter: Chatter) -> Self {
        Self {
            bars: MultiProgress::new(),
            color,
            chatter,
            closed: Arc::default(),
        }
    }

    /// Whether bars of progress can be shown.
    #[must_use]
    pub fn shows_bars(&self) -> bool {
        self.chatter == Chatter::Normal && io::stderr().is_terminal()
    }

    /// Writes a line of result to standard output. After a failure nothing more is written; see [`Self::lost`].
    pub fn line(&self, line: impl fmt::Display) {
        if self.closed.get().is_some() {
            return;
        }
        let line = self.dressed(format!("{line}\n"), &io::stdout());
        let written = self.bars.suspend(|| {
            let mut out = io::stdout().lock();
            out.write_all(line.as_bytes()).and_then(|()| out.flush())
        });
        if let Err(error) = written {
            // Somebody else's failure came first, and says as much.
            let _ = self.closed.set(error);
        }
    }

    /// Why results did not get to standard output: a full disk, say. That its reader has gone is no failure.
    #[must_use]
    pub fn lost(&self) -> Option<&io::Error> {
        self.closed
            .get()
            .filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    /// Writes bytes of result to standard output as they are.
    ///
    /// # Errors
    /// Where standard output cannot be written, other than for a reader that has gone.
    pub fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    /// Writes a note to standard error, unless quiet.
    pub fn note(&self, line: impl fmt::Display) {
        if self.chatter == Chatter::Normal {
            self.error_text(&format!("{line}\n"));
        }
    }

    /// Writes a failure to standard error, quiet or not.
    pub fn failure(&self, failure: &Failure) {
        let mut text = String::new();
        for line in failure.render().lines() {
            let styled_line = match line.split_once(": ") {
                Some(("error", rest)) => format!("{}: {rest}", styled(BAD.bold(), "error")),
                Some((label @ ("cause" | "hint"), rest)) => format!("{}: {rest}", styled(STRONG, label)),
                _ => line.to_owned(),
            };
            text.push_str(&styled_line);
            text.push('\n');
        }
        self.error_text(&text);
    }

    /// Writes text to standard error, quiet or not.
    pub fn error_text(&self, text: &str) {
        let text = self.dressed(text.to_owned(), &io::stderr());
        self.bars.suspend(|| {
            // There is nobody left to tell that standard error is closed.
            let _ = io::stderr().write_all(text.as_bytes());
        });
    }

    /// Whether bars have colours.
    #[must_use]
    pub fn colours_bars(&self) -> bool {
        self.colours(&io::stderr())
    }

    /// Text for a bar, which goes to standard error by another way.
    #[must_use]
    pub fn dressed_for_bar(&self, text: String) -> String {
        self.dressed(text, &io::stderr())
    }

    /// Text with its styles, or without them where the stream is to have none.
    fn dressed(&self, text: String, stream: &impl RawStream) -> String {
        if self.colours(stream) {
            text
        } else {
            without_styles(&text)
        }
    }

    fn colours(&self, stream: &impl RawStream) -> bool {
        let choice = match self.color {
            ColorChoice::Auto => AutoStream::choice(stream),
            chosen => chosen,
        };
        choice != ColorChoice::Never
    }
}

impl Terminal {
    /// A writer of log lines, past the bars.
    pub fn log_writer(&self) -> impl Fn() -> LogWriter + Send + Sync + 'static {
        let terminal = self.clone();
        move || LogWriter {
            terminal: terminal.clone(),
        }
    }
}

/// Writes log lines to standard error.
pub struct LogWriter {
    terminal: Terminal,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.terminal.error_text(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Text in a style.
pub fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Text without styles. Other control sequences stay: where an agent's are not escaped, they were asked for.
fn without_styles(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        let style =
            after.trim_start_matches(|character: char| character.is_ascii_digit() || character == ';');
        match style.strip_prefix('m') {
            Some(behind) => rest = behind,
            None => {
                plain.push_str("\x1b[");
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

/// Text of an agent, safe for a terminal: control characters but newline and tab are escaped, among them those of C1
/// and those that turn the direction of writing.
#[must_use]
pub fn safe(text: &str, escapes: Escapes) -> Cow<'_, str> {
    let harmful = |character: char| {
        (character.is_control() && character != '\n' && character != '\t')
            || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if escapes == Escapes::Raw || !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if harmful(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Text of an agent on one line, at most `limit` characters, escaped.
#[must_use]
pub fn one_line(text: &str, limit: usize) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let safe = safe(&flat, Escapes::Escaped);
    if safe.chars().count() <= limit {
        return safe.into_owned();
    }
    let mut short: String = safe.chars().take(limit.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A duration for people: `12 ms`, `3.4 s`, `2 min 05 s`, `1 h 02 min`.
#[must_use]
pub fn duration(milliseconds: u64) -> String {
    match milliseconds {
        0..1_000 => format!("{milliseconds} ms"),
        1_000..60_000 => format!("{}.{} s", milliseconds / 1_000, milliseconds % 1_000 / 100),
        60_000..3_600_000 => format!(
            "{} min {:02} s",
            milliseconds / 60_000,
            milliseconds % 60_000 / 1_000
        ),
        _ => format!(
            "{} h {:02} min",
            milliseconds / 3_600_000,
            milliseconds % 3_600_000 / 60_000
        ),
    }
}

/// A reward for people: up to three digits after the point, `–` where there is no verdict.
#[must_use]
pub fn reward(value: Option<f64>) -> String {
    let Some(value) = value else { return "–".into() };
    let text = format!("{value:.3}");
    let short = text.trim_end_matches('0');
    if short.ends_with('.') {
        format!("{short}0")
    } else {
        short.to_owned()
    }
}

/// A table with aligned columns.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table whose first row is a heading.
    #[must_use]
    pub fn with_heading<const N: usize>(cells: [&str; N]) -> Self {
        let mut table = Self::default();
        table.row(cells.map(|cell| styled(FAINT, cell)));
        table
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// The lines, columns two spaces apart; styles have no width.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let width = |cell: &str| anstream::adapter::strip_str(cell).to_string().chars().count();
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| width(cell))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for (cell, wide) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', wide.saturating_sub(width(cell)) + 2));
            }
            line.trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_control_characters_do_not_reach_a_terminal() {
        assert_eq!(safe("a\tb\nc", Escapes::Escaped), "a\tb\nc");
        assert_eq!(
            safe("\x1b]0;title\x07", Escapes::Escaped),
            "\\u{1b}]0;title\\u{7}"
        );
        assert_eq!(
            safe("\u{9b}2J\r\u{202e}", Escapes::Escaped),
            "\\u{9b}2J\\r\\u{202e}"
        );
        assert_eq!(safe("\x1b[1m", Escapes::Raw), "\x1b[1m");
        assert_eq!(one_line("a\n  b\x1b c", 7), "a b\\u{…");
    }

    #[test]
    fn only_styles_are_taken_off() {
        let text = format!("{} \x1b]0;t\x07 \x1b[2J", styled(BAD.bold(), "x"));
        assert_eq!(without_styles(&text), "x \x1b]0;t\x07 \x1b[2J");
    }

    #[test]
    fn durations_and_rewards_are_short() {
        let durations = [999, 1_050, 59_999, 125_000, 3_720_000].map(duration);
        assert_eq!(
            durations,
            ["999 ms", "1.0 s", "59.9 s", "2 min 05 s", "1 h 02 min"]
        );
        let rewards = [
            Some(1.0),
            Some(0.0),
            Some(0.5),
            Some(2.0 / 3.0),
            Some(-0.25),
            None,
        ]
        .map(reward);
        assert_eq!(rewards, ["1.0", "0.0", "0.5", "0.667", "-0.25", "–"]);
    }

    #[test]
    fn columns_are_aligned_whatever_their_styles() {
        let mut table = Table::with_heading(["a", "b"]);
        table.row([styled(GOOD, "long"), "x".into()]);
        let plain: Vec<String> = table
            .lines()
            .iter()
            .map(|line| anstream::adapter::strip_str(line).to_string())
            .collect();
        assert_eq!(plain, ["a     b", "long  x"]);
    }
}
