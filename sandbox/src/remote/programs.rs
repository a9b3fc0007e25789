use super::agent_user::name_user;
use super::machine::{As, Ended, Program, Running, Said};
use super::sandbox::Inside;
use super::scripts;
use crate::{Command, Exit, OutputSink, Process, Role, SandboxError};
use async_trait::async_trait;
use dressage_wire::event::OutputStream;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How much longer than its deadline the provider lets a program live: the host keeps the deadline.
const BACKSTOP: Duration = Duration::from_secs(60);

/// What Linux takes as one argument, in bytes (`MAX_ARG_STRLEN`).
const LONGEST_ARGUMENT: usize = 128 << 10;

/// Refuses what no system starts, and what would be something else in the scripts and protocols on the way.
pub(super) fn can_start(command: &Command) -> Result<(), SandboxError> {
    let refused = |message: &str, errno| {
        Err(SandboxError::Operation {
            operation: "start",
            object: command.argv.first().cloned().unwrap_or_default(),
            message: message.to_owned(),
            errno: Some(errno),
        })
    };
    let mut texts = command
        .argv
        .iter()
        .chain(command.env.iter().flat_map(|(name, value)| [name, value]));
    if command.argv.is_empty() {
        return refused("it has no name", libc::EINVAL);
    }
    if texts.any(|text| text.contains('\0')) {
        return refused("a zero byte in its arguments or environment", libc::EINVAL);
    }
    if command
        .env
        .keys()
        .any(|name| name.is_empty() || name.contains('='))
    {
        return refused("a name that no variable has", libc::EINVAL);
    }
    if command
        .argv
        .iter()
        .any(|argument| argument.len() >= LONGEST_ARGUMENT)
    {
        return refused("an argument that is too long", libc::E2BIG);
    }
    Ok(())
}

/// What runs a command in its directory, with its input, environment and mark.
pub(super) fn program(inside: &Inside, command: &Command, mark: &str, input: String) -> Program {
    let mut env = if command.clear_env {
        BTreeMap::new()
    } else {
        inside.env.clone()
    };
    env.extend(command.env.clone());
    let account = inside.account(command.role);
    if account.is_some() {
        name_user(&mut env);
    }
    env.insert(scripts::TREE.into(), mark.to_owned());
    let keep = if command.clear_env {
        let names: Vec<&str> = env.keys().map(String::as_str).collect();
        format!(" {} ", names.join(" "))
    } else {
        String::new()
    };
    let cwd = inside.absolute(command.cwd.as_deref().unwrap_or_default());
    let mut argv: Vec<String> = ["/bin/sh", "-c", scripts::RUN, "dressage"]
        .map(str::to_owned)
        .into();
    argv.extend([cwd, input, keep]);
    if let Some(leader) = inside.leader.get() {
        argv.extend([leader.clone(), "leader".to_owned()]);
    }
    argv.extend(command.argv.iter().cloned());
    let program = Program {
        argv,
        env,
        lifetime: command.timeout.map(|timeout| timeout + BACKSTOP),
        who: As::User,
    };
    match account {
        Some(account) => account.dress(program),
        None => program,
    }
}

/// A program in it.
pub(super) struct RemoteProcess {
    inside: Arc<Inside>,
    mark: String,
    role: Role,
    outcome: watch::Receiver<Option<Result<Exit, String>>>,
}

impl RemoteProcess {
    /// Follows a program that was started to its end, or to its deadline.
    pub(super) fn follow(
        inside: &Arc<Inside>,
        running: Box<dyn Running>,
        output: Arc<dyn OutputSink>,
        mark: String,
        begun: Instant,
        command: &Command,
    ) -> Self {
        let (deadline, role) = (command.timeout, command.role);
        let (told, outcome) = watch::channel(None);
        let (here, tree) = (Arc::clone(inside), mark.clone());
        tokio::spawn(async move {
            let killed = || Err("it was killed".to_owned());
            let following = follow(running, &output);
            tokio::pin!(following);
            let mut timed_out = false;
            let ended = tokio::select! {
                biased;
                () = here.over.cancelled() => killed(),
                ended = &mut following => ended,
                () = until(begun, deadline) => {
                    timed_out = true;
                    match here.end_tree(&tree, role).await {
                        Err(error) => Err(error.to_string()),
                        Ok(()) => tokio::select! {
                            biased;
                            () = here.over.cancelled() => killed(),
                            ended = &mut following => ended,
                        },
                    }
                }
            };
            told.send_replace(Some(ended.map(|ended| Exit {
                code: if timed_out { 124 } else { ended.code },
                signal: ended.signal,
                timed_out,
                duration: begun.elapsed(),
            })));
        });
        Self {
            inside: Arc::clone(inside),
            mark,
            role,
            outcome,
        }
    }
}

/// Gives what a program writes to a sink until it ends, or until that is not known.
async fn follow(mut running: Box<dyn Running>, sink: &Arc<dyn OutputSink>) -> Result<Ended, String> {
    loop {
        match running.next().await {
            Ok(Said::Stdout(bytes)) => sink.write(OutputStream::Stdout, &bytes),
            Ok(Said::Stderr(bytes)) => sink.write(OutputStream::Stderr, &bytes),
            Ok(Said::Ended(ended)) => return Ok(ended),
            Err(error) => return Err(error.to_string()),
        }
    }
}

async fn until(begun: Instant, timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep_until((begun + timeout).into()).await,
        None => std::future::pending().await,
    }
}

#[async_trait]
impl Process for RemoteProcess {
    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        let outcome = match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        match outcome {
            Some(Ok(exit)) => Ok(exit),
            Some(Err(reason)) => Err(self.inside.gone(reason)),
            None => Err(self.inside.gone("nobody waits for its programs")),
        }
    }

    async fn kill(&mut self) -> Result<(), SandboxError> {
        let runs = self.outcome.borrow().is_none();
        // What an agent started may live on when it has ended itself.
        if runs || self.inside.account(self.role).is_some() {
            self.inside.end_tree(&self.mark, self.role).await?;
        }
        if runs {
            self.wait().await?;
        }
        Ok(())
    }
}
