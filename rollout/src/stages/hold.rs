use super::boot::seconds;
use super::plan::resolve;
use super::setup::REPORT_SLACK;
use super::verify::{self, VerifyShell};
use crate::command::TaskCommand;
use crate::events::since_epoch_ms;
use crate::hold::{Answer, Call, Calls, FinishRequest, HeldCommand, HoldError, SoFar};
use crate::report::{Report, Stop};
use crate::run::{Cut, Scope};
use dressage_sandbox::{Sandbox, SandboxError};
use dressage_wire::event::{Event, ReleasedBy, Stage};
use dressage_wire::reward::{self, CommandResult, Reward, RewardSource, Separation};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How long a hold lasts at most, however often its caller calls: a sandbox has an end.
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Calls that run at once; others wait.
const AT_ONCE: usize = 8;

/// How long a file may take on its way.
const FILE_TIMEOUT: Duration = Duration::from_secs(120);

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Commands of the caller's that are kept with the reward; of others there are events only.
const MAX_EVIDENCE: usize = 64;

/// Keeps the sandbox for the caller until they are done, `idle` has passed without a call, or the rollout is cancelled.
///
/// What the caller runs is as separate from the agent as verify is: the sandbox is still that of verify, or is prepared
/// as for it. A hold that nobody ends is no failure: what verify said stands.
pub(crate) async fn run(
    scope: &Scope,
    sandbox: &mut Arc<dyn Sandbox>,
    idle: Duration,
    report: &mut Report,
) -> Result<(), Stop> {
    let verified = report.reward.as_ref().map(|reward| reward.separation);
    let separation = match verified {
        Some(separation) => separation,
        None => verify::prepare(scope, sandbox, report).await?,
    };
    let sandbox = &**sandbox;
    let bench = Bench {
        scope,
        sandbox,
        shell: VerifyShell::new(scope, report),
    };
    let (held, mut calls) = Calls::open(scope.request.id, so_far(report));
    scope.events.open_hold(held);
    let mut deadline = Deadline::start(scope, idle);
    let mut index = scope.request.task.verify.len();
    let mut evidence = Vec::new();
    let mut running = FuturesUnordered::new();
    let (by, finish) = loop {
        tokio::select! {
            biased;
            () = scope.cancel.cancelled() => break (ReleasedBy::Cancel, None),
            Some(call) = calls.next(), if running.len() < AT_ONCE => match call {
                Call::Finish(request, answer) => match check(&request, scope) {
                    Ok(()) => break (ReleasedBy::Caller, Some((request, answer))),
                    Err(error) => {
                        reply(answer, Err(error));
                        deadline.extend(Duration::ZERO);
                    }
                },
                call => {
                    let is_command = matches!(call, Call::Exec(..));
                    let longest = bench.longest(&call);
                    deadline.extend(longest);
                    running.push(bench.answer(call, index, longest));
                    index += usize::from(is_command);
                }
            },
            Some(result) = running.next(), if !running.is_empty() => {
                evidence.extend(result);
                deadline.extend(Duration::ZERO);
            }
            () = tokio::time::sleep_until(deadline.at), if running.is_empty() => {
                break (ReleasedBy::Deadline, None);
            }
        }
    };
    // In this order: whoever is answered, or sees that it is over, finds the hold closed and the reward decided.
    calls.close(by);
    drop(running);
    let answer = finish.map(|(request, answer)| {
        decide(request, evidence, separation, report);
        scope.events.tell(Event::Reward {
            value: report.reward.as_ref().and_then(|reward| reward.value),
        });
        answer
    });
    scope.events.tell(Event::Released { by });
    if let Some(answer) = answer {
        reply(answer, Ok(()));
    }
    match by {
        ReleasedBy::Cancel => Err(Stop::Cancelled),
        ReleasedBy::Caller | ReleasedBy::Deadline => Ok(()),
    }
}

/// What the caller can read while it holds.
fn so_far(report: &Report) -> SoFar {
    SoFar {
        setup: report.setup.clone(),
        agent: report.agent.clone(),
        verify: report.reward.as_ref().map(|reward| reward.commands.clone()),
        warnings: report.warnings.clone(),
    }
}

/// Whether a caller's verdict can be taken.
fn check(request: &FinishRequest, scope: &Scope) -> Result<(), HoldError> {
    if let Some(value) = request.reward {
        reward::check(value, scope.request.task.reward).map_err(|source| HoldError::Reward { source })?;
    }
    let bytes = request.detail.as_ref().map_or(0, |detail| {
        // A map of JSON values always has a JSON form.
        serde_json::to_vec(detail).map_or(usize::MAX, |json| json.len())
    });
    if bytes > reward::DETAIL_MAX_BYTES {
        let limit = reward::DETAIL_MAX_BYTES;
        return Err(HoldError::DetailTooLarge { bytes, limit });
    }
    Ok(())
}

/// Takes the caller's verdict, with what they ran as evidence. Where they give none, what verify said stands.
fn decide(
    request: FinishRequest,
    mut evidence: Vec<CommandResult>,
    separation: Separation,
    report: &mut Report,
) {
    let FinishRequest { reward, detail } = request;
    let earlier = report.reward.take();
    if let (None, Some(earlier)) = (reward, earlier.clone()) {
        report.reward = Some(Reward { detail, ..earlier });
        return;
    }
    if evidence.len() > MAX_EVIDENCE {
        report.warn(format!(
            "of {} commands of the caller, the first {MAX_EVIDENCE} are kept",
            evidence.len()
        ));
        evidence.truncate(MAX_EVIDENCE);
    }
    let mut commands = earlier.map(|earlier| earlier.commands).unwrap_or_default();
    commands.append(&mut evidence);
    report.reward = Some(Reward {
        // Minus zero becomes zero.
        value: reward.map(|value| value + 0.0),
        overridden: false,
        source: RewardSource::Caller,
        commands,
        separation,
        detail,
    });
}

/// When a hold ends by itself. It is looked at only while no call runs.
struct Deadline<'a> {
    scope: &'a Scope,
    idle: Duration,
    at: Instant,
    last: Instant,
}

impl<'a> Deadline<'a> {
    fn start(scope: &'a Scope, idle: Duration) -> Self {
        let now = Instant::now();
        let mut deadline = Self {
            scope,
            idle,
            at: now,
            last: now + LONGEST,
        };
        deadline.extend(Duration::ZERO);
        deadline
    }

    /// Sets it anew, behind what may take so long, and tells.
    fn extend(&mut self, busy: Duration) {
        let now = Instant::now();
        let left = busy
            .saturating_add(self.idle)
            .min(self.last.saturating_duration_since(now));
        self.at = now + left;
        self.scope.events.tell(Event::Held {
            until_unix_ms: since_epoch_ms(SystemTime::now() + left),
        });
    }
}

/// What calls are done with.
struct Bench<'a> {
    scope: &'a Scope,
    sandbox: &'a dyn Sandbox,
    shell: VerifyShell,
}

impl Bench<'_> {
    /// How long a call may take.
    fn longest(&self, call: &Call) -> Duration {
        match call {
            Call::Exec(command, _) => {
                let usual = || seconds(self.scope.request.task.limits.verify_timeout_s);
                command.timeout.unwrap_or_else(usual).min(LONGEST)
            }
            _ => FILE_TIMEOUT,
        }
    }

    /// Does what a caller asks for, and answers. Gives what came of a command.
    async fn answer(&self, call: Call, index: usize, longest: Duration) -> Option<CommandResult> {
        let sandbox = self.sandbox;
        let path = |path: &str| resolve(sandbox, path);
        match call {
            Call::Exec(command, answer) => {
                let result = self.exec(command, index, longest).await;
                let kept = result.as_ref().ok().cloned();
                reply(answer, result);
                return kept;
            }
            Call::ReadFile(file, answer) => {
                let path = path(&file);
                let read = sandbox.read_file(&path, MAX_FILE_BYTES);
                reply(answer, self.within(longest, read).await);
            }
            Call::WriteFile(file, content, mode, answer) => {
                let path = path(&file);
                let write = sandbox.write_file(&path, content, mode);
                reply(answer, self.within(longest, write).await);
            }
            Call::Exists(file, answer) => {
                let path = path(&file);
                reply(answer, self.within(longest, sandbox.exists(&path)).await);
            }
            Call::List(folder, max_depth, max_files, answer) => {
                let path = path(&folder);
                let list = sandbox.list_files(&path, max_depth, max_files);
                reply(answer, self.within(longest, list).await);
            }
            // Taken before.
            Call::Finish(..) => {}
        }
        None
    }

    async fn exec(
        &self,
        held: HeldCommand,
        index: usize,
        timeout: Duration,
    ) -> Result<CommandResult, HoldError> {
        let mut command = self.shell.command(self.sandbox, &held.command, timeout);
        command.env.extend(held.env);
        if let Some(cwd) = held.cwd {
            command.cwd = Some(resolve(self.sandbox, &cwd));
        }
        let command = TaskCommand {
            stage: Stage::Verify,
            index,
            text: &held.command,
            command,
        };
        let run = command.run(self.sandbox, Some(&self.scope.events));
        self.within(timeout + REPORT_SLACK, run).await
    }

    async fn within<T>(
        &self,
        longest: Duration,
        work: impl Future<Output = Result<T, SandboxError>>,
    ) -> Result<T, HoldError> {
        let id = self.scope.request.id;
        match self.scope.until(Instant::now() + longest, work).await {
            Ok(done) => Ok(done?),
            Err(Cut::Deadline) => Err(HoldError::Unresponsive { id, waited: longest }),
            Err(Cut::Cancelled) => Err(HoldError::Released {
                id,
                by: ReleasedBy::Cancel,
            }),
        }
    }
}

/// Answers a caller, who may have left.
fn reply<T>(answer: Answer<T>, result: Result<T, HoldError>) {
    _ = answer.send(result);
}
