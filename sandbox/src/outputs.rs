//! Outputs: what is at a path of one sandbox, taken out of it and put into another, where it replaces what is there.
//!
//! Both sides run `tar`, which every image with a shell has, through [`Sandbox::start`], so that it is the same on every backend;
//! `dressage-tap` is not in all of them and has no room for more. What comes out is [rewritten](crate::archive) while it comes,
//! into a file of the host: memory is bounded by the names in it. What goes in goes by [`Sandbox::upload`].

use crate::archive::{ArchiveError, ArchiveLimits, Ending, Link, Omitted, Rewriter};
use crate::{Command, OutputSink, Sandbox, SandboxError};
use bytes::Bytes;
use dressage_wire::event::OutputStream;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Links that lead out and are asked about in the other sandbox; beyond that they are left out.
const ASKED: usize = 4096;

/// What is kept of what a program complains.
const COMPLAINT_BYTES: usize = 2048;

/// The environment of our own programs: the sandbox's may be an agent's choice, or say how `tar` is to behave.
const ENVIRONMENT: [(&str, &str); 2] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("LC_ALL", "C"),
];

/// Says that nothing is at the path.
const NOTHING: i32 = 44;

/// Writes an archive: `FOLDER NAME`. Times with their fractions where this `tar` can.
const TAKE: &str = r#"
cd -- "$1" 2>/dev/null || exit 44
[ -e "./$2" ] || [ -L "./$2" ] || exit 44
command -v tar >/dev/null || { echo "there is no tar" >&2; exit 127; }
format=
if tar --format=posix --version >/dev/null 2>&1; then
  format='--format=posix --pax-option=delete=atime,delete=ctime'
fi
exec tar $format -cf - "./$2"
"#;

/// Says which of the links on standard input, each a path and a target, are there the same: `PLACE`. By their number, a line each.
const SAME: &str = r#"
number=0
while IFS= read -r -d '' path && IFS= read -r -d '' target; do
  if [ -L "$1$path" ]; then
    found=$(readlink -n -- "$1$path"; echo x)
    [ "$found" = "${target}x" ] && echo "$number"
  fi
  number=$((number + 1))
done
exit 0
"#;

/// Removes what is there, and unpacks an archive, if one is named, which is then removed: `FOLDER NAME ARCHIVE`.
const PUT: &str = r#"
[ -z "$3" ] || mkdir -p -- "$1" || exit 1
cd -- "$1" 2>/dev/null || { [ -z "$3" ]; exit; }
rm -rf -- "./$2" 2>/dev/null || { chmod -R u+rwx -- "./$2" 2>/dev/null; rm -rf -- "./$2"; } || exit 1
[ -n "$3" ] || exit 0
options=-xpof
tar --format=posix --version >/dev/null 2>&1 && options=-xpoPf
tar "$options" "$3" && rm -f -- "$3"
"#;

/// Why outputs were not taken or put.
#[derive(Debug, thiserror::Error)]
pub enum OutputsError {
    /// The sandbox did not do it.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// What it gave cannot be taken.
    #[error("what is at `{path}` cannot be copied")]
    Archive {
        /// The path.
        path: String,
        /// Why not.
        #[source]
        source: ArchiveError,
    },
    /// It took too long.
    #[error("what is at `{path}` was not copied within {} s", within.as_secs_f64())]
    TimedOut {
        /// The path.
        path: String,
        /// The time there was.
        within: Duration,
    },
}

/// What was at a path.
#[derive(Debug)]
pub struct Output {
    /// Nothing may have been there.
    archive: Option<Ending<BufWriter<File>>>,
    /// What was not read, as the sandbox tells.
    pub complaint: Option<String>,
}

/// Takes what is at `path`, absolute, out of a sandbox in which nothing runs any more. `spool` is an empty file that can be read
/// and written; `place` is the path again where that will be the same in the sandbox that it is put into.
///
/// # Errors
/// [`OutputsError`]: nothing was taken.
pub async fn take(
    sandbox: &dyn Sandbox,
    path: &str,
    place: Option<&str>,
    spool: File,
    limits: ArchiveLimits,
    within: Duration,
) -> Result<Output, OutputsError> {
    let (folder, name) = split(path);
    let intake = Arc::new(Intake {
        state: Mutex::new(State {
            rewriter: Some(Rewriter::new(name, place, limits, BufWriter::new(spool))),
            refused: None,
            complaint: Vec::new(),
        }),
        refusal: CancellationToken::new(),
    });
    let command = command("sh", TAKE, &[folder, name], Bytes::new(), within);
    let mut process = sandbox.start(command, intake.clone()).await?;
    let exit = tokio::select! {
        biased;
        exit = process.wait() => Some(exit?),
        () = intake.refusal.cancelled() => None,
    };
    let refused = |source| OutputsError::Archive {
        path: path.to_owned(),
        source,
    };
    let (rewriter, complaint) = match intake.end() {
        Ok(taken) => taken,
        Err(error) => {
            // What is not read is not to be written; whether that can be done is of no account.
            let _ = process.kill().await;
            return Err(refused(error));
        }
    };
    let failed = |code: i32| {
        OutputsError::Sandbox(SandboxError::Operation {
            operation: "pack",
            object: path.to_owned(),
            message: format!("exit code {code}: {complaint}"),
            errno: None,
        })
    };
    match exit {
        Some(exit) if exit.timed_out => Err(OutputsError::TimedOut {
            path: path.to_owned(),
            within,
        }),
        Some(exit) if exit.code == NOTHING && rewriter.is_untouched() => Ok(Output {
            archive: None,
            complaint: None,
        }),
        Some(exit) if exit.code != 0 && rewriter.is_untouched() => Err(failed(exit.code)),
        Some(exit) => {
            // A file that nobody can read is left out by `tar`, which says so and goes on.
            let complaint = (exit.code != 0).then_some(complaint);
            let archive = Some(rewriter.finish().map_err(refused)?);
            Ok(Output { archive, complaint })
        }
        None => Err(failed(-1)),
    }
}

impl Output {
    /// Bytes and entries that it has of the limits.
    #[must_use]
    pub fn rest_of(&self, limits: ArchiveLimits) -> ArchiveLimits {
        self.archive.as_ref().map_or(limits, |archive| archive.rest())
    }

    /// Puts it at `path`, absolute, in place of what is there. A link that leads out of it is put only where there is the
    /// same already: then it is not the agent's. Says what was left out.
    ///
    /// # Errors
    /// [`OutputsError`]: what is at the path then is not known.
    pub async fn put(
        self,
        sandbox: &dyn Sandbox,
        path: &str,
        within: Duration,
    ) -> Result<Omitted, OutputsError> {
        let (folder, name) = split(path);
        let Some(archive) = self.archive else {
            run(
                sandbox,
                "remove",
                "sh",
                PUT,
                &[folder, name, ""],
                Bytes::new(),
                within,
            )
            .await?;
            return Ok(Omitted::default());
        };
        let kept = same(sandbox, path, archive.outward(), within).await?;
        let closed = archive
            .close(&kept)
            .and_then(|(spool, omitted)| {
                let spool = spool
                    .into_inner()
                    .map_err(|error| ArchiveError::Keep(error.into_error()))?;
                Ok((spool, omitted))
            })
            .map_err(|source| OutputsError::Archive {
                path: path.to_owned(),
                source,
            });
        let (spool, omitted) = closed?;
        let packed = format!("{}/.dressage-outputs.tar", sandbox.home().trim_end_matches('/'));
        sandbox.upload(&packed, Arc::new(spool), 0o600).await?;
        run(
            sandbox,
            "unpack",
            "sh",
            PUT,
            &[folder, name, &packed],
            Bytes::new(),
            within,
        )
        .await?;
        Ok(omitted)
    }
}

/// Which of the links are in the sandbox as they are, by their place among them.
async fn same(
    sandbox: &dyn Sandbox,
    path: &str,
    links: impl Iterator<Item = &Link>,
    within: Duration,
) -> Result<BTreeSet<usize>, OutputsError> {
    let mut asked = Vec::new();
    for link in links.take(ASKED) {
        if !link.path.is_empty() {
            asked.push(b'/');
        }
        for text in [&link.path, &link.target] {
            asked.extend_from_slice(text);
            asked.push(0);
        }
    }
    if asked.is_empty() {
        return Ok(BTreeSet::new());
    }
    let told = run(
        sandbox,
        "look at links below",
        "bash",
        SAME,
        &[path],
        asked.into(),
        within,
    )
    .await?;
    let told = String::from_utf8_lossy(&told).into_owned();
    Ok(told.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Folder and name of an absolute path.
fn split(path: &str) -> (&str, &str) {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => (".", path),
    }
}

fn command(shell: &str, script: &str, arguments: &[&str], stdin: Bytes, within: Duration) -> Command {
    let argv = [shell, "-c", script, "dressage"]
        .into_iter()
        .chain(arguments.iter().copied());
    Command {
        argv: argv.map(str::to_owned).collect(),
        env: BTreeMap::from(ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned()))),
        clear_env: true,
        cwd: None,
        stdin,
        timeout: Some(within),
        ..Command::default()
    }
}

/// Runs a script that must succeed, and gives what it wrote.
async fn run(
    sandbox: &dyn Sandbox,
    operation: &'static str,
    shell: &str,
    script: &str,
    arguments: &[&str],
    stdin: Bytes,
    within: Duration,
) -> Result<Vec<u8>, OutputsError> {
    let heard = Arc::new(Heard::default());
    let command = command(shell, script, arguments, stdin, within);
    let exit = sandbox.exec(command, heard.clone()).await?;
    let path = arguments.join("/");
    if exit.timed_out {
        return Err(OutputsError::TimedOut { path, within });
    }
    let mut heard = heard.0.lock().unwrap_or_else(PoisonError::into_inner);
    if exit.code != 0 {
        return Err(OutputsError::Sandbox(SandboxError::Operation {
            operation,
            object: path,
            message: format!("exit code {}: {}", exit.code, shown(&heard.complaint)),
            errno: None,
        }));
    }
    Ok(std::mem::take(&mut heard.out))
}

/// The beginning of a complaint, on a line.
fn shown(complaint: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaint);
    let line = text.trim().chars().take(300);
    line.map(|character| if character.is_control() { ' ' } else { character })
        .collect()
}

/// Keeps what a script of ours says.
#[derive(Default)]
struct Heard(Mutex<Words>);

#[derive(Default)]
struct Words {
    out: Vec<u8>,
    complaint: Vec<u8>,
}

impl OutputSink for Heard {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match stream {
            // A number a line, of links that are asked about: never more than this.
            OutputStream::Stdout if heard.out.len() < 8 * ASKED => heard.out.extend_from_slice(bytes),
            OutputStream::Stdout => {}
            OutputStream::Stderr => add(&mut heard.complaint, bytes),
        }
    }
}

fn add(complaint: &mut Vec<u8>, bytes: &[u8]) {
    let room = COMPLAINT_BYTES.saturating_sub(complaint.len());
    complaint.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
}

/// Rewrites an archive as it comes: into a file, so that the program which writes it waits for the disk and nothing piles up.
struct Intake {
    state: Mutex<State>,
    /// No more is taken.
    refusal: CancellationToken,
}

struct State {
    /// Until it is over.
    rewriter: Option<Rewriter<BufWriter<File>>>,
    refused: Option<ArchiveError>,
    complaint: Vec<u8>,
}

impl OutputSink for Intake {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match stream {
            OutputStream::Stderr => add(&mut state.complaint, bytes),
            OutputStream::Stdout => {
                let pushed = state.rewriter.as_mut().map(|rewriter| rewriter.push(bytes));
                if let Some(Err(error)) = pushed {
                    state.rewriter = None;
                    state.refused = Some(error);
                    self.refusal.cancel();
                }
            }
        }
    }
}

impl Intake {
    /// Takes no more; what there is, and what was complained of.
    fn end(&self) -> Result<(Rewriter<BufWriter<File>>, String), ArchiveError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let complaint = shown(&state.complaint);
        match (state.rewriter.take(), state.refused.take()) {
            (Some(rewriter), None) => Ok((rewriter, complaint)),
            (_, Some(error)) => Err(error),
            // Ended twice.
            (None, None) => Err(ArchiveError::Truncated { bytes: 0 }),
        }
    }
}
