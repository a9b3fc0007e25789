//! `dressage sandboxes list|kill`: the sandboxes of this data directory, on this machine and at providers, by their leases.

use crate::embedded;
use crate::error::Failure;
use crate::exit::Exit;
use crate::terminal::{BAD, FAINT, GOOD, STRONG, Table, duration, one_line, styled};
use crate::workspace::Context;
use dressage_rollout::ROLLOUT_LABEL;
use dressage_sandbox::BackendConfig;
use dressage_sandbox::lease::{Lease, LeaseKind, Owner, is_alive};
use dressage_wire::ids::{InstallationId, OwnerId, SandboxId};
use futures_util::StreamExt;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Sandboxes that are ended at the same time.
const AT_ONCE: usize = 8;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the sandboxes of this data directory, whichever process has them: oldest first.
    List {
        #[command(flatten)]
        which: Which,
        /// Only those that a process left which is dead.
        #[arg(long)]
        dead: bool,
        /// Write a JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// End sandboxes that dead processes left. Those of a process that runs are its own: cancel their rollouts instead.
    Kill {
        /// Which: ids, or the beginnings of such that say which.
        #[arg(value_name = "ID", required_unless_present = "all_dead",
              conflicts_with_all = ["all_dead", "backend", "label", "owner"])]
        ids: Vec<String>,
        /// All that dead processes left; with options, of these only those that are so.
        #[arg(long)]
        all_dead: bool,
        #[command(flatten)]
        which: Which,
        /// Write a JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

/// Which of them.
#[derive(Clone, Debug, Default, clap::Args)]
struct Which {
    /// Only those of this backend.
    #[arg(long, value_name = "NAME", help = super::run::sandboxes())]
    backend: Option<String>,
    /// Only those with this label; repeatable.
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Only those of this process, by the id of its owner.
    #[arg(long, value_name = "ID")]
    owner: Option<OwnerId>,
}

/// Takes `NAME=VALUE`.
fn label(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it is not of the form NAME=VALUE"),
    }
}

impl Which {
    fn takes(&self, lease: &Lease) -> bool {
        self.backend.as_ref().is_none_or(|name| *name == lease.backend)
            && self.owner.is_none_or(|owner| owner == lease.owner)
            && self
                .label
                .iter()
                .all(|(name, value)| lease.labels.get(name) == Some(value))
    }
}

/// Does it.
///
/// # Errors
/// Where leases cannot be read, an id is none, or a sandbox is another's or cannot be ended.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    match &arguments.command {
        Command::List { which, dead, json } => list(context, which, *dead, *json),
        Command::Kill {
            ids,
            all_dead: _,
            which,
            json,
        } => kill(context, ids, which, *json).await,
    }
}

/// A sandbox, for programs.
#[derive(Debug, Serialize)]
pub struct Told<'a> {
    sandbox: SandboxId,
    /// What it is: a sandbox, or the files of one.
    kind: LeaseKind,
    backend: &'a str,
    installation: InstallationId,
    owner: OwnerId,
    /// Whether its process lives.
    owner_alive: bool,
    rollout: Option<&'a str>,
    /// When it was asked for.
    created_unix_ms: Option<u64>,
    /// At a provider: where, and what it is called there, as far as that is known.
    place: Option<&'a str>,
    provider_id: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
}

impl<'a> Told<'a> {
    /// What a lease tells of it.
    #[must_use]
    pub fn of(lease: &'a Lease, owner_alive: bool) -> Self {
        let remote = lease.remote.as_ref();
        Self {
            sandbox: lease.sandbox,
            kind: lease.kind,
            backend: &lease.backend,
            installation: lease.installation,
            owner: lease.owner,
            owner_alive,
            rollout: lease.labels.get(ROLLOUT_LABEL).map(String::as_str),
            created_unix_ms: created(lease.sandbox),
            place: remote.map(|remote| remote.place.as_str()),
            provider_id: remote.and_then(|remote| remote.provider_id.as_deref()),
            labels: &lease.labels,
        }
    }
}

/// The time in an id.
fn created(sandbox: SandboxId) -> Option<u64> {
    let (seconds, nanoseconds) = sandbox.as_uuid().get_timestamp()?.to_unix();
    Some(
        seconds
            .saturating_mul(1000)
            .saturating_add(u64::from(nanoseconds / 1_000_000)),
    )
}

/// All leases. One that cannot be read is told of and hides none of the others.
fn leases(context: &Context) -> Result<Vec<Lease>, Failure> {
    let (leases, unreadable) = Lease::all(&context.paths.data).map_err(|error| {
        Failure::from_error(Exit::MachineLacks, &error).hint("`--data-dir` names another")
    })?;
    for error in unreadable {
        context
            .terminal
            .failure(&Failure::from_error(Exit::MachineLacks, &error));
    }
    Ok(leases)
}

fn list(context: &Context, which: &Which, dead: bool, json: bool) -> Result<Exit, Failure> {
    let data = &context.paths.data;
    let mut found = Vec::new();
    for lease in leases(context)? {
        let alive = is_alive(data, lease.owner);
        if which.takes(&lease) && !(dead && alive) {
            found.push((lease, alive));
        }
    }
    if json {
        for (lease, alive) in &found {
            context.terminal.line(json_line(&Told::of(lease, *alive))?);
        }
        return Ok(Exit::Done);
    }
    if found.is_empty() {
        context
            .terminal
            .note(format!("no such sandboxes in {}", data.display()));
        return Ok(Exit::Done);
    }
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let mut table = Table::with_heading(["sandbox", "backend", "owner", "age", "rollout", "at"]);
    for (lease, alive) in &found {
        let told = Told::of(lease, *alive);
        let age = told
            .created_unix_ms
            .map(|at| now.saturating_sub(at) / 1000 * 1000);
        let at = match (told.provider_id, told.place) {
            (Some(id), _) => one_line(id, 40),
            (None, Some(place)) => format!("{} {}", one_line(place, 40), styled(FAINT, "(unanswered)")),
            (None, None) => "this machine".into(),
        };
        table.row([
            styled(STRONG, told.sandbox),
            one_line(told.backend, 20),
            if *alive {
                styled(GOOD, "alive")
            } else {
                styled(BAD, "dead")
            },
            age.map_or("–".into(), duration),
            match (told.kind, told.rollout) {
                (LeaseKind::Snapshot, _) => styled(FAINT, "a snapshot"),
                (LeaseKind::Sandbox, Some(rollout)) => one_line(rollout, 40),
                (LeaseKind::Sandbox, None) => "–".into(),
            },
            at,
        ]);
    }
    for line in table.lines() {
        context.terminal.line(line);
    }
    let left = found.iter().filter(|(_, alive)| !alive).count();
    if left > 0 {
        context.terminal.note(styled(
            FAINT,
            format!("{left} left by dead processes: the next `dressage run` or `serve` ends them, or `dressage sandboxes kill --all-dead` now"),
        ));
    }
    Ok(Exit::Done)
}

fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::from_error(Exit::MachineLacks, &error))
}

/// What came of ending one, for programs.
#[derive(Debug, Serialize)]
struct Ended<'a> {
    sandbox: SandboxId,
    backend: &'a str,
    killed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

async fn kill(context: &Context, ids: &[String], which: &Which, json: bool) -> Result<Exit, Failure> {
    let data = &context.paths.data;
    let all = leases(context)?;
    let mut chosen: Vec<Lease> = match ids {
        [] => {
            let left = |lease: &Lease| which.takes(lease) && !is_alive(data, lease.owner);
            all.into_iter().filter(left).collect()
        }
        ids => choose(&all, ids)?,
    };
    // All are looked at before one is ended.
    for lease in &chosen {
        if is_alive(data, lease.owner) {
            return Err(belongs_to_another(lease));
        }
    }
    if chosen.is_empty() {
        context
            .terminal
            .note(format!("no such sandboxes in {}", data.display()));
        return Ok(Exit::Done);
    }
    let config = backends(context)?;
    // Snapshots when there is nothing any more that was made of them.
    chosen.sort_by_key(|lease| lease.kind);
    let first_snapshot = chosen.partition_point(|lease| lease.kind == LeaseKind::Sandbox);
    let (sandboxes, snapshots) = chosen.split_at(first_snapshot);
    let ending = |leases| {
        let ending = <[Lease]>::iter(leases).map(|lease| end(lease, &config));
        futures_util::stream::iter(ending).buffered(AT_ONCE)
    };
    let mut ending = std::pin::pin!(ending(sandboxes).chain(ending(snapshots)));
    let mut exit = Exit::Done;
    let mut of = chosen.iter();
    while let (Some(result), Some(lease)) = (ending.next().await, of.next()) {
        if json {
            context.terminal.line(json_line(&Ended {
                sandbox: lease.sandbox,
                backend: &lease.backend,
                killed: result.is_ok(),
                error: result.as_ref().err().map(whole),
            })?);
        }
        match result {
            Ok(()) if json => {}
            Ok(()) => context.terminal.line(format!("{} is ended", lease.sandbox)),
            Err(failure) => {
                exit = failure.exit;
                context.terminal.failure(&failure);
            }
        }
    }
    Ok(exit)
}

/// A failure and its causes, on a line.
fn whole(failure: &Failure) -> String {
    std::iter::once(&failure.what)
        .chain(&failure.causes)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(": ")
}

/// The leases of the sandboxes whose ids begin so, each once.
fn choose(all: &[Lease], ids: &[String]) -> Result<Vec<Lease>, Failure> {
    let mut chosen: Vec<Lease> = Vec::new();
    for id in ids {
        let shown = one_line(id, 80);
        let begins = |lease: &&Lease| lease.sandbox.to_string().starts_with(&id.to_ascii_lowercase());
        let found: Vec<&Lease> = all.iter().filter(begins).collect();
        match found.as_slice() {
            _ if id.is_empty() => return Err(Failure::input("an id is empty")),
            [] => {
                return Err(
                    Failure::input(format!("no sandbox of this data directory is called `{shown}`"))
                        .hint("`dressage sandboxes list` shows them; one that is gone needs no end"),
                );
            }
            [one] if chosen.iter().any(|lease| lease.sandbox == one.sandbox) => {}
            [one] => chosen.push((*one).clone()),
            several => {
                return Err(Failure::input(format!(
                    "`{shown}` is the beginning of {} sandboxes' ids",
                    several.len()
                ))
                .hint("give more of it"));
            }
        }
    }
    Ok(chosen)
}

fn belongs_to_another(lease: &Lease) -> Failure {
    let failure = Failure::input(format!(
        "sandbox {} belongs to the running process {}",
        lease.sandbox, lease.owner
    ));
    match lease.labels.get(ROLLOUT_LABEL) {
        Some(rollout) => failure.hint(format!(
            "cancel rollout {} where it runs, or end that process; no sandbox was ended",
            one_line(rollout, 40)
        )),
        None => failure.hint("end that process; no sandbox was ended"),
    }
}

/// What backends are made with: this process has no sandboxes of its own, but whoever ends some must be an owner.
pub(super) fn backends(context: &Context) -> Result<BackendConfig, Failure> {
    let tap_binary = tap_binary(context)?;
    let owner = Owner::acquire(&context.paths.data).map_err(|error| {
        Failure::from_error(Exit::MachineLacks, &error)
            .hint("the data directory must be writable; `--data-dir` names another")
    })?;
    Ok(context.backends(Arc::new(owner), tap_binary))
}

/// The program that sandboxes are given.
pub(super) fn tap_binary(context: &Context) -> Result<PathBuf, Failure> {
    embedded::unpack(&context.paths.cache).map_err(|error| {
        Failure::from_error(Exit::MachineLacks, &error)
            .hint("the cache directory must be writable and have space left; `--cache-dir` names another")
    })
}

async fn end(lease: &Lease, config: &BackendConfig) -> Result<(), Failure> {
    let backend = dressage_sandbox::by_name(&lease.backend).and_then(|entry| (entry.make)(config));
    let ended = match backend {
        Ok(backend) => backend.delete(lease.sandbox).await,
        Err(error) => Err(error),
    };
    ended.map_err(|error| {
        let failure = Failure::from_error(Exit::MachineLacks, &error).maybe_hint(error.hint());
        Failure {
            what: format!("sandbox {} was not ended: {}", lease.sandbox, failure.what),
            ..failure
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases() -> (tempfile::TempDir, Vec<Lease>) {
        let folder = tempfile::tempdir().unwrap();
        let owner = Owner::acquire(folder.path()).unwrap();
        let lease = |backend: &str, task: &str| {
            let labels = BTreeMap::from([("task".to_owned(), task.to_owned())]);
            Lease::new(&owner, SandboxId::new(), backend, labels)
        };
        let leases = vec![lease("local", "a"), lease("e2b", "a"), lease("local", "b")];
        (folder, leases)
    }

    #[test]
    fn ids_are_chosen_by_their_beginning_where_that_says_which() {
        let (_folder, all) = leases();
        let whole = all[1].sandbox.to_string();
        let chosen = choose(&all, &[whole.to_uppercase(), whole.clone()]).unwrap();
        assert_eq!(
            chosen.iter().map(|lease| lease.sandbox).collect::<Vec<_>>(),
            [all[1].sandbox]
        );
        // Made within a millisecond or so: their beginnings are the same.
        let told = |id: &str| choose(&all, &[id.to_owned()]).unwrap_err().what;
        assert_eq!(
            told(&whole[..4]),
            format!("`{}` is the beginning of 3 sandboxes' ids", &whole[..4])
        );
        assert_eq!(told(""), "an id is empty");
        assert_eq!(
            told("../x\n"),
            "no sandbox of this data directory is called `../x`"
        );
    }

    #[test]
    fn they_are_told_apart_by_backend_label_and_owner() {
        let (_folder, all) = leases();
        let count = |which: Which| all.iter().filter(|lease| which.takes(lease)).count();
        assert_eq!(count(Which::default()), 3);
        let backend = Some("local".to_owned());
        let label = vec![("task".to_owned(), "a".to_owned())];
        assert_eq!(
            count(Which {
                backend: backend.clone(),
                ..Which::default()
            }),
            2
        );
        assert_eq!(
            count(Which {
                label: label.clone(),
                ..Which::default()
            }),
            2
        );
        assert_eq!(
            count(Which {
                backend,
                label,
                owner: Some(all[0].owner)
            }),
            1
        );
        assert_eq!(
            count(Which {
                owner: Some(OwnerId::new()),
                ..Which::default()
            }),
            0
        );
    }

    #[test]
    fn an_id_tells_when_its_sandbox_was_asked_for() {
        let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap();
        let created = created(SandboxId::new()).unwrap();
        assert!(now.abs_diff(created) < 60_000, "{created} {now}");
    }
}
