//! This test program again, in a process of its own that can be killed, limited or run as another user.

use crate::{queue, samples};
use dressage_store::{ListFilter, Store};
use dressage_wire::ids::OwnerId;
use dressage_wire::rollout::Recorder;
use dressage_wire::trajectory::TrajectoryBuilder;
use std::path::Path;
use std::process::{Command, Stdio};

const ROLE: &str = "DRESSAGE_STORE_TEST_ROLE";
const DIRECTORY: &str = "DRESSAGE_STORE_TEST_DIRECTORY";

/// A program that plays a role on a data directory. What it says begins with `@` on a line of its own.
pub fn command(program: &Path, role: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.args([
        "--exact",
        "child::plays_a_role",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(ROLE, role).env(DIRECTORY, directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

pub fn this_program() -> std::path::PathBuf {
    std::env::current_exe().unwrap()
}

/// What a role says, in order.
pub fn said(output: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    text.lines()
        .filter_map(|line| line.strip_prefix('@'))
        .map(str::to_owned)
        .collect()
}

fn say(what: &str) {
    // The harness leaves its own line unfinished.
    println!("\n@{what}");
}

#[test]
#[ignore = "is run by other tests, in a process of its own"]
fn plays_a_role() {
    let (Ok(role), Some(directory)) = (std::env::var(ROLE), std::env::var_os(DIRECTORY)) else {
        return;
    };
    let directory = Path::new(&directory);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "write for ever" => write(directory, usize::MAX).await,
            "write 20" => write(directory, 20).await,
            "fill the disk" => fill(directory).await,
            "open" => open(directory).await,
            "read" => read(directory).await,
            other => match other.strip_prefix("adopt ") {
                Some(dead) => adopt(directory, dead.parse().unwrap()).await,
                None => panic!("no role {other}"),
            },
        }
    });
}

/// Says what is stored, when it is.
async fn write(directory: &Path, rollouts: usize) {
    let store = Store::open(directory).await.unwrap();
    for _ in 0..rollouts {
        let start = samples::start();
        store.started(&start).await.unwrap();
        say(&format!("started {}", start.id));
        let mut builder = TrajectoryBuilder::new();
        for call in samples::conversation() {
            let index = call.meta.index;
            store.call(start.id, &builder.push(call)).await.unwrap();
            say(&format!("call {} {index}", start.id));
        }
        store.finished(&samples::outcome(start.id)).await.unwrap();
        say(&format!("finished {}", start.id));
    }
    store.close().await;
    say("done");
}

/// Text that no compression makes much smaller.
fn noise(bytes: usize, seed: u64) -> String {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        format!("{:08x}", state >> 32)
    })
    .take(bytes / 8)
    .collect()
}

/// One finished rollout; then one whose calls take all the space there is, and whose outcome is large.
async fn fill(directory: &Path) {
    let store = Store::open(directory).await.unwrap();
    let first = samples::start();
    store.started(&first).await.unwrap();
    let mut builder = TrajectoryBuilder::new();
    for call in samples::conversation() {
        store.call(first.id, &builder.push(call)).await.unwrap();
    }
    store.finished(&samples::outcome(first.id)).await.unwrap();
    say(&format!("finished {}", first.id));

    let second = samples::start();
    store.started(&second).await.unwrap();
    say(&format!("started {}", second.id));
    let mut builder = TrajectoryBuilder::new();
    let mut index = 0;
    for bytes in [400_000, 8_000] {
        let refused = loop {
            let call = samples::call(
                index,
                &[samples::message("user", &noise(bytes, u64::from(index)))],
            );
            index += 1;
            if let Err(refused) = store.call(second.id, &builder.push(call)).await {
                break refused;
            }
        };
        let error = refused.source.downcast::<dressage_store::StoreError>().unwrap();
        say(&format!("refused {error} | {}", error.hint().unwrap_or_default()));
    }
    // None of a batch is in the queue when there is no space for all.
    let mut batch = vec![queue::queued(OwnerId::new()), queue::queued(OwnerId::new())];
    batch[1].spec = noise(2_000_000, 1).into();
    let refused = store.enqueue(&batch, None).await.unwrap_err();
    say(&format!(
        "refused {refused} | {}",
        refused.hint().unwrap_or_default()
    ));
    assert_eq!(store.counts().await.unwrap().queued, 0);
    let mut outcome = samples::outcome(second.id);
    outcome.files.insert("noise".into(), noise(600_000, 7));
    match store.finished(&outcome).await {
        Ok(()) => say("outcome stored"),
        Err(error) => say(&format!("outcome: {}", error.source)),
    }
    store.close().await;
}

/// Takes over what an owner left, and says what that is.
async fn adopt(directory: &Path, dead: OwnerId) {
    let store = Store::open(directory).await.unwrap();
    for adopted in store.adopt(OwnerId::new(), &[dead]).await.unwrap() {
        say(&adopted.queued.id.to_string());
    }
    store.close().await;
}

async fn open(directory: &Path) {
    match Store::open(directory).await {
        Ok(_) => say("opened"),
        Err(error) => say(&format!("{error} | {}", error.hint().unwrap_or_default())),
    }
}

async fn read(directory: &Path) {
    match Store::open_read_only(directory).await {
        Ok(store) => say(&format!(
            "{} rollouts",
            store.list(&ListFilter::default()).await.unwrap().len()
        )),
        Err(error) => say(&format!("{error} | {}", error.hint().unwrap_or_default())),
    }
}
