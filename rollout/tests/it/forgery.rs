use crate::world::{World, task, task_of_agent};
use dressage_wire::fault::{Ended, FaultOwner};
use dressage_wire::reward::Separation;
use dressage_wire::task::{FileContent, RewardRange};

const REWARD: &str = "/home/user/logs/verifier/reward.txt";

/// Ways of an agent to leave a reward, or something in the place where verify writes its own.
pub const FORGERIES: [(&str, &str); 9] = [
    (
        "a file",
        "mkdir -p ~/logs/verifier; echo 1 > ~/logs/verifier/reward.txt",
    ),
    (
        "a link",
        "mkdir -p ~/logs/verifier; echo 1 > ~/mine; ln -s ~/mine ~/logs/verifier/reward.txt",
    ),
    (
        "a dangling link",
        "mkdir -p ~/logs/verifier; ln -s ~/nowhere ~/logs/verifier/reward.txt",
    ),
    ("a directory", "mkdir -p ~/logs/verifier/reward.txt/x"),
    (
        "a FIFO",
        "mkdir -p ~/logs/verifier; mkfifo ~/logs/verifier/reward.txt",
    ),
    (
        "a read-only file",
        "mkdir -p ~/logs/verifier; echo 1 > ~/logs/verifier/reward.txt; chmod 444 ~/logs/verifier/reward.txt; chmod 555 ~/logs/verifier",
    ),
    (
        "a link in place of the directory",
        "mkdir -p ~/mine ~/logs; echo 1 > ~/mine/reward.txt; ln -s ~/mine ~/logs/verifier",
    ),
    (
        "a file in place of the directory",
        "mkdir -p ~/logs; echo 1 > ~/logs/verifier",
    ),
    (
        "a link in place of its parent",
        "mkdir -p ~/mine/verifier; echo 1 > ~/mine/verifier/reward.txt; ln -s ~/mine ~/logs",
    ),
];

#[tokio::test]
async fn a_reward_that_the_agent_left_counts_for_nothing_in_whatever_form() {
    for (form, forgery) in FORGERIES {
        let world = World::where_the_agent_runs(forgery).await;
        let done = world.run(task(&["true", "false"])).await;
        assert_eq!(
            done.outcome.ended,
            Ended::Completed,
            "{form}: {:?}",
            done.outcome.fault
        );
        let reward = done.outcome.reward.as_ref().unwrap();
        assert_eq!((reward.value, reward.overridden), (Some(0.5), false), "{form}");
        assert_eq!(reward.separation, Separation::Namespace, "{form}");
    }
}

#[tokio::test]
async fn verify_can_write_its_reward_whatever_the_agent_left_in_the_way() {
    for (form, forgery) in FORGERIES {
        let world = World::where_the_agent_runs(forgery).await;
        let done = world
            .run(task(&["false", &format!("echo 0.25 > {REWARD}")]))
            .await;
        let reward = done.outcome.reward.as_ref().unwrap();
        assert_eq!(
            (reward.value, reward.overridden),
            (Some(0.25), true),
            "{form}: {:?}",
            done.outcome
        );
    }
}

#[tokio::test]
async fn a_daemon_that_the_agent_left_is_dead_before_verify_begins() {
    let world = World::new().await;
    let mut task = task_of_agent("leave_daemon");
    // The shell, ls and the sandbox's own programs: a daemon would make it more, and write ten times a second.
    task.verify = vec![
        "sleep 1; false".into(),
        format!("test ! -e {REWARD}"),
        "! grep -l scripted_agen[t] /proc/[0-9]*/comm /proc/[0-9]*/cmdline 2>/dev/null".into(),
    ];
    let done = world.run(task).await;
    let reward = done.outcome.reward.as_ref().unwrap();
    assert_eq!(done.verified(), [1, 0, 0], "{reward:?}");
    assert!(!reward.overridden);
}

/// Files that shells read at their start.
pub const STARTUP_FILES: &str = "for file in .bashrc .bash_profile .bash_login .profile .bash_logout; do \
    echo 'export FORGED=1; exit 0' > ~/$file; done; mkdir -p ~/.config; echo 'exit 0' > ~/.env";

#[tokio::test]
async fn startup_files_that_the_agent_wrote_steer_nothing() {
    let world = World::where_the_agent_runs(STARTUP_FILES).await;
    let mut task = task(&["false", "test -z \"$FORGED\"", "bash -c 'exit 1'"]);
    // A variable that names a startup file of the home would be read again by every shell.
    task.env.insert("BASH_ENV".into(), "/home/user/.env".into());
    let done = world.run(task).await;
    assert_eq!(done.verified(), [1, 0, 1], "{:?}", done.outcome);
}

/// Modules that Python imports by itself, and one that it does not.
pub const USER_SITE: &str = "site=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p $site; \
    echo 'import os; os._exit(0)' > $site/usercustomize.py; \
    echo 'import os; os._exit(0)' > $site/sitecustomize.py; \
    echo 'forged = 1' > $site/forged.py";

#[tokio::test]
async fn usercustomize_and_user_packages_that_the_agent_wrote_are_not_imported() {
    let world = World::where_the_agent_runs(USER_SITE).await;
    let done = world
        .run(task(&[
            "python3 -c 'raise SystemExit(3)'",
            "python3 -c 'import forged'",
        ]))
        .await;
    assert_eq!(done.verified(), [3, 1], "{:?}", done.outcome);
}

#[tokio::test]
async fn user_packages_that_setup_put_there_are_imported() {
    let world = World::new().await;
    let mut task = task(&["python3 -c 'import ours'"]);
    task.setup = vec![
        "site=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p $site; touch $site/ours.py".into(),
    ];
    let done = world.run(task).await;
    assert_eq!(done.verified(), [0], "{:?}", done.outcome);
}

/// Programs where a login shell looks for some.
pub const PROGRAMS: &str = "mkdir -p ~/bin ~/.local/bin; for name in python3 python ls cat grep; do \
    for dir in ~/bin ~/.local/bin .; do printf '#!/bin/sh\\nexit 0\\n' > $dir/$name; chmod 755 $dir/$name; done; done; \
    echo 'export PATH=~/bin:~/.local/bin:.:$PATH' >> ~/.profile; \
    echo 'export PATH=~/bin:~/.local/bin:.:$PATH' >> ~/.bashrc";

#[tokio::test]
async fn a_path_that_the_agent_wrote_is_not_searched() {
    let world = World::where_the_agent_runs(PROGRAMS).await;
    let done = world
        .run(task(&[
            "python3 -c 'raise SystemExit(3)'",
            "ls /nowhere",
            "cat /nowhere",
        ]))
        .await;
    assert_eq!(done.verified(), [3, 2, 1], "{:?}", done.outcome);
}

#[tokio::test]
async fn what_the_agent_left_in_tmp_is_gone_at_verify() {
    let world = World::where_the_agent_runs("echo 1 > /tmp/planted").await;
    let done = world
        .run(task(&["test ! -e /tmp/planted && touch /tmp/mine"]))
        .await;
    assert_eq!(done.verified(), [0]);
}

#[tokio::test]
async fn the_agent_never_sees_the_verify_files() {
    let world = World::where_the_agent_runs("cat answer > seen 2>/dev/null; ls -a . .. > list").await;
    let mut task = task(&[
        "test \"$(cat answer)\" = 42",
        "test ! -s seen",
        "! grep answer list",
    ]);
    task.verify_files
        .insert("answer".into(), FileContent::Text("42".into()));
    let done = world.run(task).await;
    assert_eq!(done.verified(), [0, 0, 0], "{:?}", done.outcome);
}

#[tokio::test]
async fn a_verify_file_in_whose_place_the_agent_put_a_link_is_written_there_and_not_through_it() {
    let world = World::where_the_agent_runs("echo mine > mine; ln -s $PWD/mine answer").await;
    let mut task = task(&["test \"$(cat answer)\" = 42", "test \"$(cat mine)\" = mine"]);
    task.verify_files
        .insert("answer".into(), FileContent::Text("42".into()));
    let done = world.run(task).await;
    assert_eq!(done.verified(), [0, 0], "{:?}", done.outcome);
}

#[tokio::test]
async fn overrides_that_are_no_reward_are_faults_of_the_task() {
    for (form, write) in [
        ("nan", format!("echo nan > {REWARD}")),
        ("inf", format!("echo inf > {REWARD}")),
        ("-0.5", format!("echo -0.5 > {REWARD}")),
        ("1.5", format!("echo 1.5 > {REWARD}")),
        ("empty", format!(": > {REWARD}")),
        ("two numbers", format!("printf '0.5\\n0.6\\n' > {REWARD}")),
        ("a link", format!("echo 1 > ~/one; ln -s ~/one {REWARD}")),
        ("a directory", format!("mkdir {REWARD}")),
        ("a FIFO", format!("mkfifo {REWARD}")),
        (
            "too long",
            format!("head -c 5000 /dev/zero | tr '\\0' 0 > {REWARD}"),
        ),
    ] {
        let done = World::new().await.run(task(&["true", &write])).await;
        let fault = done
            .outcome
            .fault
            .as_ref()
            .unwrap_or_else(|| panic!("{form}: {:?}", done.outcome));
        assert_eq!(
            (fault.code.as_str(), fault.owner),
            ("reward_invalid", FaultOwner::Task),
            "{form}"
        );
        assert_eq!(done.reward(), None, "{form}");
        assert_eq!(done.verified(), [0, 0], "{form}: the evidence is kept");
        assert_eq!(done.outcome.ended, Ended::Completed, "{form}");
    }
}

#[tokio::test]
async fn an_override_is_looked_at_in_the_range_of_the_task() {
    let mut task = task(&["false", &format!("echo -0.5 > {REWARD}")]);
    task.reward = RewardRange { min: -1.0, max: 1.0 };
    let done = World::new().await.run(task).await;
    let reward = done.outcome.reward.as_ref().unwrap();
    assert_eq!(
        (reward.value, reward.overridden, reward.commands.len()),
        (Some(-0.5), true, 2)
    );
}
