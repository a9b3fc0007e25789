//! The environment of a login shell, recorded after setup and before there is an agent.

use crate::command::Tail;
use crate::faults;
use crate::report::Stop;
use crate::run::Scope;
use crate::stages::setup::REPORT_SLACK;
use dressage_sandbox::{Command, OutputSink, Sandbox};
use dressage_wire::event::{OutputStream, Stage};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What is read of the shell's output at most.
const OUTPUT_BYTES: usize = 1 << 20;

/// Where Python looks for a user's own packages, below the home.
const USER_SITE_PARENT: &str = ".local/lib";

/// What verify starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedEnvironment {
    /// The variables of a login shell after setup.
    pub(crate) variables: BTreeMap<String, String>,
    /// Whether setup itself put packages where Python looks for a user's own.
    pub(crate) user_site_filled: bool,
}

impl RecordedEnvironment {
    /// The whole environment of a verify command.
    ///
    /// Two things are not as recorded. A user site that setup left empty stays unread, since only the agent can have
    /// filled it. `BASH_ENV` and `ENV` are left out: they name a file that a shell would read again, as the agent left it.
    pub(crate) fn for_verify(&self) -> BTreeMap<String, String> {
        let mut variables = self.variables.clone();
        variables.remove("BASH_ENV");
        variables.remove("ENV");
        if !self.user_site_filled {
            variables.insert("PYTHONNOUSERSITE".into(), "1".into());
        }
        variables
    }
}

/// Asks a login shell for its environment.
pub(crate) async fn record(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    stage: Stage,
    timeout: Duration,
) -> Result<RecordedEnvironment, Stop> {
    // Startup files may print; what counts comes after the mark.
    let mark = format!("dressage-{}", scope.request.id);
    let command = Command {
        argv: vec![
            "bash".into(),
            "-l".into(),
            "-c".into(),
            format!("printf '%s\\0' {mark}; exec env -0"),
        ],
        timeout: Some(timeout),
        ..Command::default()
    };
    let output = Arc::new(Output::default());
    let deadline = Instant::now() + timeout + REPORT_SLACK;
    let running = sandbox.exec(command, output.clone());
    let exit = scope
        .ask(stage, faults::SETUP_ENVIRONMENT_UNREADABLE, deadline, running)
        .await?;
    let unreadable = |reason: String| {
        let mut fault = faults::SETUP_ENVIRONMENT_UNREADABLE.fault(
            Some(stage),
            "a login shell did not tell its environment after setup",
        );
        fault.causes.push(reason);
        fault.hint = Some("look for `exit` or `exec` in startup files that setup wrote".into());
        Stop::from(fault)
    };
    if exit.code != 0 {
        return Err(unreadable(format!("it exited with code {}", exit.code)));
    }
    let variables = {
        let kept = output.kept.lock().unwrap_or_else(PoisonError::into_inner);
        parse(&kept.text(), &mark).ok_or_else(|| unreadable("its output has no environment in it".into()))?
    };
    Ok(RecordedEnvironment {
        variables,
        user_site_filled: user_site_filled(sandbox).await,
    })
}

/// Whether there is a file in a `site-packages` of the home.
async fn user_site_filled(sandbox: &dyn Sandbox) -> bool {
    let parent = format!("{}/{USER_SITE_PARENT}", sandbox.home());
    let found = sandbox.list_files(&parent, 8, 256).await.unwrap_or_default();
    found
        .files
        .iter()
        .any(|(path, _)| path.contains("/site-packages/"))
}

fn parse(output: &str, mark: &str) -> Option<BTreeMap<String, String>> {
    let (_, listed) = output.rsplit_once(&format!("{mark}\0"))?;
    let variables: BTreeMap<String, String> = listed
        .split('\0')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    (!variables.is_empty()).then_some(variables)
}

#[derive(Default)]
struct Output {
    kept: Mutex<Tail<OUTPUT_BYTES>>,
}

impl OutputSink for Output {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        if stream == OutputStream::Stdout {
            self.kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_startup_files_print_is_not_taken_for_a_variable() {
        let output = "FORGED=1\0hello mark\0PATH=/bin\0EMPTY=\0MULTI=a\nb=c\0";
        let variables = parse(output, "mark").unwrap();
        let expected = [("PATH", "/bin"), ("EMPTY", ""), ("MULTI", "a\nb=c")];
        assert_eq!(
            variables,
            expected.map(|(name, value)| (name.into(), value.into())).into()
        );
        assert_eq!(parse("PATH=/bin\0", "mark"), None);
        assert_eq!(parse("mark\0", "mark"), None);
    }

    #[test]
    fn verify_reads_no_user_site_that_only_the_agent_can_have_filled() {
        let variables = BTreeMap::from([
            ("BASH_ENV".into(), "/home/user/.evil".into()),
            ("A".into(), "1".into()),
        ]);
        let mut recorded = RecordedEnvironment {
            variables,
            user_site_filled: false,
        };
        let expected = BTreeMap::from([("A".into(), "1".into()), ("PYTHONNOUSERSITE".into(), "1".into())]);
        assert_eq!(recorded.for_verify(), expected);
        recorded.user_site_filled = true;
        assert_eq!(recorded.for_verify(), BTreeMap::from([("A".into(), "1".into())]));
    }
}
