//! Rollouts as they run: bars on a terminal, plain lines elsewhere; all on standard error.

use crate::render;
use crate::terminal::{
    BAD, Escapes, FAINT, GOOD, NOTE, STRONG, Terminal, duration, one_line, reward, styled,
};
use dressage_rollout::RolloutHandle;
use dressage_wire::event::{AgentEvent, Event, Stage};
use dressage_wire::fault::Ended;
use dressage_wire::rollout::RolloutOutcome;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// How much of a rollout is told while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Stages, commands, calls and tools: for one rollout.
    Everything,
    /// Its end: for many at once.
    Ends,
}

/// Tells of the rollouts of one command.
#[derive(Clone, Debug)]
pub struct Progress {
    terminal: Terminal,
    detail: Detail,
    escapes: Escapes,
    overall: ProgressBar,
}

impl Progress {
    /// For so many rollouts.
    #[must_use]
    pub fn new(terminal: &Terminal, detail: Detail, escapes: Escapes, total: u64) -> Self {
        let overall = if detail == Detail::Ends && terminal.shows_bars() {
            bar(terminal, ProgressBar::new(total), OVERALL)
        } else {
            ProgressBar::hidden()
        };
        Self {
            terminal: terminal.clone(),
            detail,
            escapes,
            overall,
        }
    }

    /// Follows a rollout to its end. `None` only where the engine is gone.
    pub async fn follow(&self, mut handle: RolloutHandle, label: &str) -> Option<RolloutOutcome> {
        let mut teller = Teller::new(self, label);
        loop {
            match handle.events.recv().await {
                Ok(told) => teller.event(&told.event),
                // What was missed is in the outcome.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            }
        }
        let outcome = handle.outcome().await;
        teller.spinner.finish_and_clear();
        self.overall.inc(1);
        if let (Some(outcome), Detail::Ends) = (&outcome, self.detail) {
            self.terminal.note(end_line(label, outcome));
        }
        outcome
    }

    /// Takes the bars away.
    pub fn clear(&self) {
        self.overall.finish_and_clear();
    }
}

/// How a rollout among many ended, in a line.
fn end_line(label: &str, outcome: &RolloutOutcome) -> String {
    let mut line = format!("{label}  {}", render::verdict(outcome));
    if let Some(fault) = &outcome.fault {
        line.push_str(&format!("  {}", styled(BAD, one_line(&fault.message, 120))));
    }
    if outcome.unstored.is_some() {
        line.push_str(&format!("  {}", styled(BAD, "not stored")));
    }
    line
}

/// How a bar looks.
struct Look {
    coloured: &'static str,
    plain: &'static str,
}

const OVERALL: Look = Look {
    coloured: "{bar:24.green/white.dim} {pos}/{len} rollouts  {elapsed}",
    plain: "{bar:24} {pos}/{len} rollouts  {elapsed}",
};

const SPINNER: Look = Look {
    coloured: "{spinner} {msg} {elapsed:.dim}",
    plain: "{spinner} {msg} {elapsed}",
};

fn bar(terminal: &Terminal, bar: ProgressBar, look: Look) -> ProgressBar {
    let bar = terminal.bars.add(bar);
    let template = if terminal.colours_bars() {
        look.coloured
    } else {
        look.plain
    };
    // A template of this file that is malformed would show indicatif's own instead.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Tells of one rollout.
struct Teller<'a> {
    progress: &'a Progress,
    spinner: ProgressBar,
    label: String,
    calls: u64,
    tools: u64,
}

impl<'a> Teller<'a> {
    fn new(progress: &'a Progress, label: &str) -> Self {
        let spinner = if progress.terminal.shows_bars() {
            bar(&progress.terminal, ProgressBar::new_spinner(), SPINNER)
        } else {
            ProgressBar::hidden()
        };
        spinner.set_message(format!("{label} queued"));
        Self {
            progress,
            spinner,
            label: label.into(),
            calls: 0,
            tools: 0,
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::StageStarted { stage } => {
                self.spinner.reset_elapsed();
                if self.progress.detail == Detail::Everything && !self.progress.terminal.shows_bars() {
                    self.say(format!("{} {:<8}", styled(FAINT, "…"), stage.name()));
                }
                self.status(*stage);
            }
            Event::StageEnded { stage, duration_ms } => {
                self.say(format!(
                    "{} {:<8} {:>9}",
                    styled(GOOD, "✓"),
                    stage.name(),
                    duration(*duration_ms)
                ));
            }
            Event::CommandEnded { stage, result, .. } => self.say(render::command(*stage, result)),
            Event::Agent { event } => self.agent(event),
            Event::CallEnded { call } => {
                self.calls += 1;
                self.status(Stage::Agent);
                self.say(render::call(call));
            }
            Event::Reward { value } => {
                self.say(format!("{} reward   {:>9}", styled(STRONG, "="), reward(*value)))
            }
            // Why it did is told with the outcome, which follows.
            Event::Finished { ended, .. } if *ended != Ended::Completed => {
                self.say(format!(
                    "{} ended    {:>9}",
                    styled(NOTE, "!"),
                    render::ended(*ended)
                ));
            }
            Event::Held { .. } => self.spinner.set_message(format!("{} held", self.label)),
            Event::Finished { .. }
            | Event::Queued { .. }
            | Event::Released { .. }
            | Event::CommandStarted { .. }
            | Event::CommandOutput { .. }
            | Event::CallStarted { .. }
            | Event::CallProgress { .. } => {}
        }
    }

    fn agent(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Text { text } if text.trim().is_empty() => {}
            AgentEvent::Text { text } => self.say(format!("    says   {}", self.shown(text))),
            AgentEvent::Tool { name, input, failed } => {
                self.tools += 1;
                self.status(Stage::Agent);
                let mark = if *failed {
                    styled(BAD, "failed ")
                } else {
                    String::new()
                };
                self.say(format!(
                    "    uses   {mark}{} {}",
                    self.shown(name),
                    styled(FAINT, self.shown(input))
                ));
            }
            AgentEvent::Error { message } => {
                self.say(format!("    {}  {}", styled(BAD, "error"), self.shown(message)));
            }
            AgentEvent::Session { .. } | AgentEvent::StepEnded { .. } => {}
        }
    }

    fn shown(&self, text: &str) -> String {
        match self.progress.escapes {
            Escapes::Escaped => one_line(text, 100),
            Escapes::Raw => text.to_owned(),
        }
    }

    fn status(&self, stage: Stage) {
        let mut message = format!("{} {}", self.label, styled(STRONG, stage.name()));
        if stage == Stage::Agent {
            message.push_str(&format!(" · {} calls · {} tools", self.calls, self.tools));
        }
        self.spinner
            .set_message(self.progress.terminal.dressed_for_bar(message));
    }

    fn say(&self, line: String) {
        if self.progress.detail == Detail::Everything {
            self.progress.terminal.note(line);
        }
    }
}
