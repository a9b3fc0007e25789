use crate::engine::engine;
use crate::forgery::{FORGERIES, PROGRAMS, STARTUP_FILES, USER_SITE};
use crate::played::Fake;
use crate::world::{BackendChoice, Done, World, WorldPlan, shell, task, task_of_agent};
use dressage_wire::fault::Ended;
use dressage_wire::reward::Separation;
use dressage_wire::task::{FileContent, NetworkPolicy, Task};

/// Every backend of the registry, those at providers over ones that are played. Without containers, loudly, where there is no
/// engine for them.
pub fn every_backend(played: &Fake) -> Vec<(&'static str, BackendChoice)> {
    let choice = |name| match name {
        "e2b" | "huggingface" => BackendChoice::Over(name, Box::new(played.providers())),
        _ => BackendChoice::Named(name),
    };
    dressage_sandbox::registry()
        .iter()
        .filter(|entry| entry.name != "docker" || engine().is_some())
        .map(|entry| (entry.name, choice(entry.name)))
        .collect()
}

/// A task as a backend can run it.
pub fn for_backend(name: &str, mut task: Task) -> Task {
    if name == "huggingface" {
        task.network = NetworkPolicy::Open;
    }
    task
}

/// Where verify writes its own reward, in every home.
const REWARD: &str = "~/logs/verifier/reward.txt";

/// What the reward's evidence says.
fn promised(backend: &str) -> Separation {
    let is_root = nix::unistd::geteuid().is_root();
    match backend {
        "local" | "docker" => Separation::Namespace,
        "e2b" | "huggingface" if is_root => Separation::Uid,
        _ => Separation::None,
    }
}

/// Whether what an agent left in folders for temporary files is gone.
fn renews_temporary_folders(backend: &str) -> bool {
    promised(backend) != Separation::None
}

async fn run(backend: (&'static str, BackendChoice), agent: &str, task: Task) -> Done {
    let (name, choice) = backend;
    let world = World::planned(WorldPlan {
        script: shell(agent),
        backend: choice,
        ..WorldPlan::default()
    })
    .await;
    let done = world.run(for_backend(name, task)).await;
    assert_eq!(
        done.outcome.ended,
        Ended::Completed,
        "{name}: {:?}",
        done.outcome.fault
    );
    assert_eq!(world.left(), 0, "{name}: a sandbox is left");
    done
}

#[tokio::test]
async fn a_reward_that_the_agent_left_is_out_of_the_way_on_every_backend() {
    let played = Fake::start();
    for (form, forgery) in FORGERIES {
        for backend in every_backend(&played) {
            let name = backend.0;
            let verify = [
                format!("test ! -e {REWARD} && test ! -L {REWARD}"),
                format!("echo 0.25 > {REWARD}"),
                "false".into(),
            ];
            let done = run(backend, forgery, task(&verify.each_ref().map(String::as_str))).await;
            assert_eq!(done.verified(), [0, 0, 1], "{name}: {form}: {:?}", done.outcome);
            let reward = done.outcome.reward.as_ref().unwrap();
            assert_eq!(
                (reward.value, reward.overridden),
                (Some(0.25), true),
                "{name}: {form}"
            );
            assert_eq!(reward.separation, promised(name), "{name}: {form}");
        }
    }
}

#[tokio::test]
async fn nothing_that_the_agent_wrote_or_left_running_steers_verify_on_any_backend() {
    let played = Fake::start();
    let agent = format!(
        "cat answer > seen 2>/dev/null; ls -a . .. > list; echo mine > mine; ln -s $PWD/mine answer
        echo 1 > /tmp/planted-by-the-agent
        (env -i HOME=$HOME setsid sh -c 'cd; while :; do mkdir -p logs/verifier; echo 1 > {REWARD}; sleep 0.01; done' >/dev/null 2>&1 &)
        {USER_SITE}
        {STARTUP_FILES}
        {PROGRAMS}"
    );
    for backend in every_backend(&played) {
        let name = backend.0;
        // What a program that cleared its environment does is not ended where nothing but that tells it from others.
        let ends_all = promised(name) != Separation::None || name == "process";
        let mut task = task(&[
            "false",
            "test -z \"$FORGED\"",
            "bash -c 'exit 1'",
            "python3 -c 'raise SystemExit(3)'",
            "python3 -c 'import forged'",
            "ls /nowhere",
            "cat /nowhere",
            "test \"$(cat answer)\" = 42 && test \"$(cat mine)\" = mine",
            "test ! -s seen && ! grep answer list",
            "test ! -e /tmp/planted-by-the-agent",
            &format!("sleep 0.2; test ! -e {REWARD}"),
        ]);
        task.env.insert("BASH_ENV".into(), "/home/user/.env".into());
        if name == "process" {
            task.env.clear();
        }
        task.verify_files
            .insert("answer".into(), FileContent::Text("42".into()));
        let done = run(backend, &agent, task).await;
        let temporary = i32::from(!renews_temporary_folders(name));
        let running = i32::from(!ends_all);
        assert_eq!(
            done.verified(),
            [1, 0, 1, 3, 1, 2, 1, 0, 0, temporary, running],
            "{name}: {:?}",
            done.outcome
        );
        assert_eq!(
            done.outcome.reward.as_ref().unwrap().separation,
            promised(name),
            "{name}"
        );
        if name == "process" {
            let _ = std::fs::remove_file("/tmp/planted-by-the-agent");
        }
    }
}

#[tokio::test]
async fn a_daemon_that_the_agent_left_is_dead_before_verify_begins_on_every_backend() {
    let played = Fake::start();
    for (name, backend) in every_backend(&played) {
        let world = World::planned(WorldPlan {
            backend,
            ..WorldPlan::default()
        })
        .await;
        let mut task = task_of_agent("leave_daemon");
        task.verify = vec!["sleep 0.3; false".into(), format!("test ! -e {REWARD}")];
        if name != "process" {
            // There the processes of all this machine are to be seen.
            task.verify
                .push("! grep -l scripted_agen[t] /proc/[0-9]*/comm /proc/[0-9]*/cmdline 2>/dev/null".into());
        }
        let done = world.run(for_backend(name, task)).await;
        let passed: Vec<bool> = done.verified().iter().map(|code| *code == 0).collect();
        assert_eq!(passed[..2], [false, true], "{name}: {:?}", done.outcome);
        assert!(passed[2..].iter().all(|passed| *passed), "{name}");
        assert!(!done.outcome.reward.as_ref().unwrap().overridden, "{name}");
    }
}
