use crate::everywhere::{every_backend, for_backend};
use crate::played::{E2B_KEY, Fake, HF_TOKEN};
use crate::world::{Done, World, WorldPlan, shell, task};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const MODEL_KEY: &str = "sk-of-the-model-0123456789";

/// In the environment of the agent.
const MARK: &str = "SECRETS_MARK";

/// Processes in whose environment the mark is, and all that share a namespace of processes with them, if it is not this one's.
fn inside(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let space = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let pids: Vec<String> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    let marked = |pid: &&String| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
            environ
                .split(|byte| *byte == 0)
                .any(|one| one == wanted.as_bytes())
        })
    };
    let spaces: BTreeSet<PathBuf> = pids.iter().filter(marked).filter_map(|pid| space(pid)).collect();
    let own = space("self").unwrap();
    pids.iter()
        .filter(|pid| marked(pid) || space(pid).is_some_and(|space| space != own && spaces.contains(&space)))
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Where any of the secrets stands: environments and command lines of processes, homes and folders for temporary files as these
/// see them.
fn found(pids: &[u32], secrets: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for pid in pids {
        for name in ["environ", "cmdline"] {
            // Its end may come first.
            let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            found.extend(
                secrets
                    .iter()
                    .filter(|secret| text.contains(**secret))
                    .map(|secret| format!("{secret} in {name} of {}", text.replace('\0', " "))),
            );
        }
    }
    let mut grep = Command::new("grep");
    grep.args(["-rlaF", "--devices=skip"]);
    for secret in secrets {
        grep.args(["-e", secret]);
    }
    let mut seen = BTreeSet::new();
    for pid in pids {
        let mounts = std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        if mounts.is_none() || !seen.insert(mounts) {
            continue;
        }
        for folder in ["home", "tmp"] {
            grep.arg(format!("/proc/{pid}/root/{folder}"));
        }
    }
    let output = grep.output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    found.extend(listed.lines().map(str::to_owned));
    found
}

/// While an agent works, whose call to the model went out with the key.
#[tokio::test]
async fn no_key_is_in_a_sandbox_whose_model_is_reached_through_the_relay() {
    let played = Fake::start();
    let secrets = [MODEL_KEY, E2B_KEY, HF_TOKEN];
    for (name, backend) in every_backend(&played) {
        // Whoever is not root sees nothing of what others run; and `process` is this machine itself.
        if name == "process" || (name != "local" && !nix::unistd::geteuid().is_root()) {
            continue;
        }
        let world = World::planned(WorldPlan {
            script: shell("touch here; for n in $(seq 1200); do test -e go && break; sleep 0.05; done"),
            backend,
            model_key: Some(MODEL_KEY.into()),
            ..WorldPlan::default()
        })
        .await;
        let mut task = for_backend(name, task(&["test -e here"]));
        let mark = format!("{name}-{}", std::process::id());
        task.env.insert(MARK.into(), mark.clone());
        let mut endpoint = world.endpoint();
        endpoint.api_key = Some(MODEL_KEY.to_owned().into());
        let request = world.request_to(task, endpoint);
        let handle = world.supervisor.submit(request).await.unwrap();
        let here = || {
            inside(&mark)
                .iter()
                .map(|pid| PathBuf::from(format!("/proc/{pid}/root/home/user/workdir/here")))
                .find(|here| here.exists())
        };
        let begun = std::time::Instant::now();
        let here = loop {
            if let Some(here) = here() {
                break here;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{name}: the agent does not work"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let pids = inside(&mark);
        // The agent, its shell, and the relay at least.
        assert!(pids.len() >= 3, "{name}: {pids:?}");
        assert_eq!(found(&pids, &secrets), [""; 0], "{name}");
        // What is looked for would be found: the mark is.
        assert!(!found(&pids, &[&mark]).is_empty());
        assert_eq!(world.model.calls(), 1, "{name}");
        std::fs::write(here.with_file_name("go"), "").unwrap();
        let done = Done::of(handle).await;
        assert_eq!(done.reward(), Some(1.0), "{name}: {:?}", done.outcome);
        assert_eq!(world.model.calls(), 2, "{name}");
    }
}
