use crate::fake::{FakeBackend, Trouble};
use crate::world::{BackendChoice, Done, World, WorldPlan, shell, task};
use dressage_wire::event::{Event, Stage};
use dressage_wire::fault::{Ended, FaultOwner};
use dressage_wire::reward::Separation;
use dressage_wire::task::{FileContent, Task, VerifyIn, VerifyWhen};
use std::sync::Arc;
use std::time::Duration;

fn fresh(verify: &[&str]) -> Task {
    Task {
        verify_in: Some(VerifyIn::Fresh),
        ..task(verify)
    }
}

/// Runs with an agent that does this, in two sandboxes of `local`.
async fn run_where_the_agent_runs(command: &str, task: Task) -> Done {
    let world = World::where_the_agent_runs(command).await;
    let done = world.run(task).await;
    assert_eq!(world.left(), 0, "a sandbox is left");
    done
}

fn separation(done: &Done) -> Option<Separation> {
    done.outcome.reward.as_ref().map(|reward| reward.separation)
}

#[tokio::test]
async fn nothing_that_an_agent_left_outside_of_the_outputs_reaches_verify() {
    let agent = "
        echo done > answer; rm made-by-setup
        echo wrong > ~/fixture; touch ~/.forged /tmp/forged
        (setsid sh -c 'while :; do echo forged > ~/workdir/answer; sleep 0.01; done' >/dev/null 2>&1 &)
        mkdir -p ~/.local/bin ~/bin ~/.config
        printf '#!/bin/sh\\nexit 0\\n' | tee ~/.local/bin/grep ~/bin/grep >/dev/null; chmod +x ~/.local/bin/grep ~/bin/grep
        for file in .bashrc .bash_profile .profile; do echo 'export PATH=~/bin:$PATH FORGED=1' >> ~/$file; done
        echo ~/evil.so > ~/.config/ld.so.preload
        site=~/.local/lib/$(python3 -c 'import sys; print(f\"python{sys.version_info.major}.{sys.version_info.minor}\")')/site-packages
        mkdir -p $site; echo 'import os; os._exit(0)' > $site/usercustomize.py
        git config --global core.pager false
        ln -s ~/expected expected; ln -s answer inside
        sleep 0.2; echo done > answer";
    let verify = [
        "a=$(stat -c %s.%z answer); sleep 0.2; test \"$a\" = \"$(stat -c %s.%z answer)\"",
        "test ! -e made-by-setup && test -e kept-by-setup",
        "test \"$(cat ~/fixture)\" = right",
        "test -z \"$FORGED\" && test ! -e ~/.forged && test ! -e /tmp/forged && test ! -e ~/.gitconfig",
        "test ! -e ~/bin && test ! -e ~/.local && test ! -e ~/.config && test ! -e ~/.bashrc",
        "! echo a | grep b",
        "! python3 -c 'raise SystemExit(1)'",
        "test ! -L expected && test \"$(readlink inside)\" = answer",
        "test -e ~/expected",
    ];
    let mut task = fresh(&verify);
    task.setup = vec!["echo right > ~/fixture; touch made-by-setup kept-by-setup".into()];
    task.verify_files
        .insert("/home/user/expected".into(), FileContent::Text("secret".into()));
    let done = run_where_the_agent_runs(agent, task.clone()).await;
    assert_eq!(done.verified(), [0; 9], "{:?}", done.outcome);
    assert_eq!(done.reward(), Some(1.0));
    assert_eq!(separation(&done), Some(Separation::Fresh));
    assert_eq!(done.outcome.setup.len(), 1, "setup is told once");
    let warnings = done.outcome.warnings.join("\n");
    assert!(
        warnings.contains("1 entries of the outputs") && warnings.contains("expected"),
        "{warnings}"
    );
    // In the agent's own sandbox some of it does.
    task.verify_in = Some(VerifyIn::Same);
    let same = run_where_the_agent_runs(agent, task).await;
    assert_eq!(separation(&same), Some(Separation::Namespace));
    assert_eq!(same.verified()[2..4], [1, 1], "{:?}", same.outcome);
}

#[tokio::test]
async fn outputs_are_what_they_were_and_replace_what_setup_made() {
    let agent = "
        git init -q; git -c user.name=a -c user.email=a@b add -A; git -c user.name=a -c user.email=a@b commit -qm one
        mkdir -p empty deep/$(printf 'd%.0s' $(seq 150))/x; printf '#!/bin/sh\\necho ran\\n' > run; chmod 750 run
        touch -d '2001-02-03T04:05:06.789' run; ln run again; ln -s ../run deep/link
        touch \"$(printf 'bad\\377name')\"; chmod 4755 again; mkfifo pipe; mkdir closed; echo in > closed/in; chmod 500 closed
        truncate -s 3M sparse";
    let verify = [
        "git status --porcelain | grep -v '^??' | wc -l | grep -qx 0 && git fsck --strict && git log --oneline | grep -q one",
        "test -d empty && test -d deep/d*/x",
        "test \"$(./run)\" = ran && test \"$(stat -c '%a %y' run | cut -c1-27)\" = '755 2001-02-03 04:05:06.789'",
        "test run -ef again && test \"$(readlink deep/link)\" = ../run && test deep/link -ef run",
        "test -e \"$(printf 'bad\\377name')\" && test ! -e pipe && test \"$(cat closed/in)\" = in && test \"$(stat -c %a closed)\" = 500",
        "cmp sparse <(head -c 3145728 /dev/zero)",
        "test ! -e old && test ! -d a && test -f a",
        ".venv/python -c 'print(1)' && test \"$(readlink .venv/mine)\" = python && test ! -e .venv/other",
    ];
    let mut task = fresh(&verify);
    task.setup = vec![
        "mkdir -p old/ro a .venv; touch old/ro/x; chmod 555 old/ro old; ln -s /usr/bin/python3 .venv/python; ln -s python .venv/mine"
            .into(),
    ];
    let agent =
        format!("chmod -R u+w old; rm -rf old a; echo > a; {agent}; ln -s /usr/bin/python3 .venv/other");
    let done = run_where_the_agent_runs(&agent, task).await;
    assert_eq!(done.verified(), [0; 8], "{:?}", done.outcome);
    let warnings = done.outcome.warnings.join("\n");
    assert!(warnings.contains("2 entries of the outputs"), "{warnings}");
    assert_eq!(
        done.outcome.files["closed/in"], "in\n",
        "what verify saw is collected"
    );
}

#[tokio::test]
async fn declared_outputs_are_all_that_is_copied() {
    let agent = "echo 1 > one; mkdir two; echo 2 > two/in; echo 3 > three; echo 4 > ~/four; rm five";
    let mut task = fresh(&[
        "test \"$(cat one)\" = 1 && test \"$(cat two/in)\" = 2",
        "test \"$(cat three)\" = setup && test \"$(cat ~/four)\" = 4",
        "test ! -e five && test ! -e six",
    ]);
    task.setup = vec!["echo setup > three; echo setup > five".into()];
    task.outputs = [
        "one",
        "./two/",
        "two/in",
        "/home/user//four",
        "five",
        "six/below",
        "one",
    ]
    .map(String::from)
    .into();
    let done = run_where_the_agent_runs(agent, task).await;
    assert_eq!(done.verified(), [0; 3], "{:?}", done.outcome);
    assert_eq!(done.outcome.warnings, Vec::<String>::new());
}

#[tokio::test]
async fn an_agent_that_leaves_nothing_or_a_link_in_the_place_of_its_directory_is_verified_as_that() {
    for agent in ["rm -rf ~/workdir", "rm -rf ~/workdir; ln -s /usr ~/workdir"] {
        let mut task = fresh(&["test -d . && test -z \"$(ls -A)\""]);
        task.setup = vec!["touch made-by-setup".into()];
        let done = run_where_the_agent_runs(&format!("cd ~; {agent}"), task).await;
        assert_eq!(done.reward(), Some(1.0), "{agent}: {:?}", done.outcome);
    }
}

#[tokio::test]
async fn more_than_can_be_copied_is_the_agents_fault_and_no_reward() {
    let world = World::where_the_agent_runs("truncate -s 1T huge").await;
    let done = world.run(fresh(&["true"])).await;
    let fault = done.outcome.fault.as_ref().unwrap();
    assert_eq!(
        (fault.code.as_str(), fault.owner),
        ("outputs_refused", FaultOwner::Agent)
    );
    assert_eq!(fault.stage, Some(Stage::Verify));
    assert_eq!(fault.causes, ["it has more than 4294967296 bytes"]);
    assert!(fault.hint.as_ref().unwrap().contains("`outputs`"));
    assert_eq!((done.reward(), done.outcome.ended), (None, Ended::Completed));
    assert_eq!(world.left(), 0);
}

#[tokio::test]
async fn what_cannot_be_read_is_told_and_the_rest_is_judged() {
    let done = run_where_the_agent_runs(
        "echo x > closed; chmod 0 closed; echo y > open",
        fresh(&["test -e open"]),
    )
    .await;
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    let warnings = done.outcome.warnings.join("\n");
    assert!(
        warnings.contains("not all of output `.` could be read") && warnings.contains("closed"),
        "{warnings}"
    );
}

#[tokio::test]
async fn the_home_and_what_it_is_in_are_no_outputs() {
    for output in ["/home/user", "/home/user/.", "/home"] {
        let mut task = fresh(&["true"]);
        task.outputs = vec![output.into()];
        let done = World::new().await.run(task).await;
        assert_eq!(done.code(), Some("unsupported"), "{output}");
    }
}

#[tokio::test]
async fn without_isolation_it_is_another_home_all_the_same() {
    let plan = WorldPlan {
        script: shell(
            "echo $HOME > mine; ln -s $PWD/mine link; echo forged > ~/fixture; echo export A=1 >> ~/.bash_profile",
        ),
        backend: BackendChoice::Named("process"),
        ..WorldPlan::default()
    };
    let world = World::planned(plan).await;
    let mut task = fresh(&[
        "test \"$(cat mine)\" != \"$HOME\" && test ! -L link",
        "test \"$(cat ~/fixture)\" = right",
        "test -z \"$A\"",
    ]);
    task.setup = vec!["echo right > ~/fixture".into()];
    let done = world.run(task).await;
    assert_eq!(done.verified(), [0; 3], "{:?}", done.outcome);
    assert_eq!(separation(&done), Some(Separation::Fresh));
    assert_eq!(world.left(), 0);
}

#[tokio::test]
async fn after_a_failed_setup_it_may_fail_again_where_verify_always_runs() {
    let mut task = fresh(&["test -e before", "test -e after"]);
    task.setup = vec!["touch before".into(), "exit 3".into(), "touch after".into()];
    task.verify_when = VerifyWhen::Always;
    let world = World::new().await;
    let done = world.run(task).await;
    assert_eq!(
        (done.code(), done.outcome.ended),
        (Some("setup_command_failed"), Ended::SetupError)
    );
    assert_eq!(done.verified(), [0, 1], "{:?}", done.outcome);
    assert_eq!((separation(&done), world.left()), (Some(Separation::Fresh), 0));
}

async fn fake(trouble: Trouble) -> (World, Arc<FakeBackend>) {
    let backend = FakeBackend::with(trouble);
    let plan = WorldPlan {
        backend: BackendChoice::Given(backend.clone()),
        ..WorldPlan::default()
    };
    (World::planned(plan).await, backend)
}

fn two_step() -> Task {
    let mut task = fresh(&["check"]);
    task.setup = vec!["prepare".into()];
    task.verify_files
        .insert("/home/user/expected".into(), FileContent::Text("out".into()));
    task
}

#[tokio::test]
async fn there_is_one_sandbox_at_a_time_and_each_is_set_up() {
    let (world, backend) = fake(Trouble::None).await;
    let done = world.run(two_step()).await;
    assert_eq!(
        (done.code(), done.reward()),
        (None, Some(1.0)),
        "{:?}",
        done.outcome
    );
    assert_eq!(done.stages(), Stage::ALL);
    let expected = [
        "create",
        "setup prepare",
        "list /home/user/.local/lib",
        "relay",
        "agent",
        "separate ",
        "take workdir",
        "kill",
        "create",
        "setup prepare",
        "list /home/user/.local/lib",
        "put ",
        "separate /home/user/logs/verifier",
        "write /home/user/expected",
        "verify check",
        "read /home/user/logs/verifier/reward.txt",
        "list /home/user/workdir",
        "kill",
    ];
    assert_eq!(backend.log(), expected);
    let told = done.events.iter().filter_map(|event| match &event.event {
        Event::CommandStarted { stage, index, .. } => Some((*stage, *index)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(Stage::Setup, 0), (Stage::Verify, 0)]);
}

#[tokio::test]
async fn whatever_fails_on_the_way_is_told_and_no_sandbox_is_left() {
    for (trouble, code, sandboxes, kills) in [
        (Trouble::GoneAtTaking, "sandbox_gone", 1, 1),
        (Trouble::NoArchive, "sandbox_operation_failed", 1, 1),
        (Trouble::HostileArchive, "outputs_refused", 1, 1),
        (Trouble::SecondFails, "sandbox_boot_failed", 2, 1),
        (Trouble::SecondHangs, "sandbox_boot_timeout", 2, 1),
        (Trouble::SecondSetupFails, "setup_command_failed", 2, 2),
        (Trouble::GoneAtPutting, "sandbox_gone", 2, 2),
        (Trouble::GoneAtVerify, "sandbox_gone", 2, 2),
    ] {
        let (world, backend) = fake(trouble).await;
        let mut task = two_step();
        if trouble == Trouble::SecondHangs {
            task.limits.boot_timeout_s = 0.2;
        }
        let done = world.run(task).await;
        assert_eq!(done.code(), Some(code), "{trouble:?}");
        let fault = done.outcome.fault.as_ref().unwrap();
        assert_eq!(fault.stage, Some(Stage::Verify), "{trouble:?}");
        if matches!(
            trouble,
            Trouble::SecondFails | Trouble::SecondSetupFails | Trouble::SecondHangs
        ) {
            assert!(
                fault.message.starts_with("in the fresh sandbox for verify: "),
                "{}",
                fault.message
            );
        }
        assert_eq!(
            (done.reward(), done.outcome.ended),
            (None, Ended::Completed),
            "{trouble:?}"
        );
        let count = |what: &str| backend.log().iter().filter(|asked| *asked == what).count();
        assert_eq!(
            (count("create"), count("kill")),
            (sandboxes, kills),
            "{trouble:?}: {:?}",
            backend.log()
        );
    }
}

#[tokio::test]
async fn a_sandbox_that_could_not_be_ended_in_between_is_tried_again_at_the_end() {
    let (world, backend) = fake(Trouble::KillFails).await;
    let done = world.run(two_step()).await;
    assert_eq!((done.code(), done.reward()), (None, Some(1.0)));
    assert_eq!(done.outcome.warnings.len(), 2, "{:?}", done.outcome.warnings);
    let kills = backend.log().iter().filter(|asked| *asked == "kill").count();
    assert_eq!(kills, 3);
}

#[tokio::test]
async fn a_cancellation_ends_what_there_is_at_every_step() {
    for (trouble, last, times) in [
        (Trouble::TakingHangs, "take workdir", 1),
        (Trouble::SecondHangs, "create", 2),
        (Trouble::PuttingHangs, "put ", 1),
    ] {
        let (world, backend) = fake(trouble).await;
        let handle = world.supervisor.submit(world.request(two_step())).await.unwrap();
        let count = |what: &str| backend.log().iter().filter(|asked| *asked == what).count();
        let arriving = async {
            while count(last) < times {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), arriving)
            .await
            .unwrap();
        world.supervisor.cancel(handle.id);
        let done = Done::of(handle).await;
        assert_eq!(done.outcome.ended, Ended::Cancelled, "{trouble:?}");
        let made = if trouble == Trouble::PuttingHangs { 2 } else { 1 };
        assert_eq!(count("kill"), made, "{trouble:?}: {:?}", backend.log());
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_never_ends_ends_at_its_deadline() {
    let (world, _) = fake(Trouble::TakingHangs).await;
    let mut task = two_step();
    task.limits.collect_timeout_s = 1.0;
    let done = world.run(task).await;
    assert_eq!(done.code(), Some("sandbox_gone"), "{:?}", done.outcome);
}
