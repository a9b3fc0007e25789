use crate::world::{
    Output, REMOTE, Ran, World, bytes, eventually, is_root, processes_with, run, sh, spec_for, stdout_of,
    try_run,
};
use dressage_sandbox::{
    AgentUser, Backend, BackendConfig, Command, OutputSink, Process, Role, Sandbox, SandboxError,
};
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use std::sync::Arc;
use std::time::Duration;

fn as_agent(script: &str) -> Command {
    Command {
        role: Role::Agent,
        ..sh(script)
    }
}

/// Starts an agent that says `on` when it has done what it does, and goes on.
async fn start(sandbox: &dyn Sandbox, script: &str) -> Box<dyn Process> {
    let output = Arc::new(Output::default());
    let sink = Arc::clone(&output) as Arc<dyn OutputSink>;
    let command = as_agent(&format!("{script}\necho on; sleep 1000"));
    let process = sandbox.start(command, sink).await.unwrap();
    eventually("the agent", || output.stdout().ends_with("on\n")).await;
    process
}

/// Runs an agent to its end, as its stage does.
async fn to_its_end(sandbox: &dyn Sandbox, command: Command) -> Ran {
    let output = Arc::new(Output::default());
    let sink = Arc::clone(&output) as Arc<dyn OutputSink>;
    let mut process = sandbox.start(command, sink).await.unwrap();
    let exit = process.wait().await.unwrap();
    process.kill().await.unwrap();
    Ran {
        exit,
        stdout: output.stdout(),
        stderr: output.stderr(),
    }
}

fn backend_of(world: &World, name: &str, agent_user: AgentUser) -> Arc<dyn Backend> {
    let mut config: BackendConfig = world.remote_config();
    config.providers.e2b.agent_user = Some(agent_user);
    config.providers.huggingface.agent_user = Some(agent_user);
    (dressage_sandbox::by_name(name).unwrap().make)(&config).unwrap()
}

#[tokio::test]
async fn an_agent_is_a_user_of_its_own_and_the_home_is_its_while_it_runs() {
    if !is_root() {
        return;
    }
    let world = World::new();
    for name in REMOTE {
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let owner = stdout_of(
            &*sandbox,
            sh("mkdir -p workdir; echo 1 >workdir/mine; chmod 600 workdir/mine; stat -c %u workdir/mine"),
        )
        .await;
        for turn in 1..=2 {
            sandbox
                .write_file("workdir/config", bytes("from us"), 0o600)
                .await
                .unwrap();
            let mut command = as_agent(
                "id -u; id -un; echo $HOME $USER $LOGNAME; grep NoNewPrivs /proc/self/status | tr -d '\\t'
                 cat; cat config; echo more >>mine; mkdir -p made; echo 2 >made/file; chmod 700 made",
            );
            command.cwd = Some("workdir".into());
            command.stdin = bytes("to be read\n");
            let ran = to_its_end(&*sandbox, command).await;
            let lines: Vec<&str> = ran.stdout.lines().collect();
            assert_eq!(ran.exit.code, 0, "{name} {turn}: {}", ran.stderr);
            let number: u32 = lines[0].parse().unwrap();
            assert!((20_000..60_000).contains(&number), "{}", ran.stdout);
            assert_eq!(
                lines[1..],
                [
                    "dressage-agent",
                    "/home/user dressage-agent dressage-agent",
                    "NoNewPrivs:1",
                    "to be read",
                    "from us"
                ],
                "{name} {turn}"
            );
            assert_eq!(ran.stderr, "", "{name} {turn}");
        }
        // What it made is theirs to whom the home was, once it has ended.
        let found = stdout_of(
            &*sandbox,
            sh("cat workdir/mine workdir/made/file; find . ! -user $(id -u); stat -c %u workdir/mine workdir/made; echo new >workdir/made/other"),
        )
        .await;
        assert_eq!(found, format!("1\nmore\nmore\n2\n{owner}\n{owner}"), "{name}");
        assert_eq!(sandbox.separate(&[]).await.unwrap(), Separation::Uid);
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_roots_is_not_the_agents() {
    if !is_root() {
        return;
    }
    let world = World::new();
    for name in REMOTE {
        let backend = world.remote(name);
        let mut spec = spec_for(&*backend);
        spec.relay_port = Some(7000);
        let sandbox = backend.create(spec).await.unwrap();
        // The brackets keep it from finding itself.
        let pry = "
            for line in $(grep -lsz -e '[-]-dialled' /proc/[0-9]*/cmdline); do
              pid=${line#/proc/}; pid=${pid%/cmdline}
              echo relay
              kill -9 $pid 2>/dev/null && echo killed
              cat /proc/$pid/environ 2>/dev/null | grep -q . && echo read
              (exec 3</proc/$pid/mem) 2>/dev/null && echo opened
            done
            find /tmp/.dressage -writable 2>/dev/null
            for place in /etc /etc/passwd /usr/bin /root /; do [ -w $place ] && echo \"writes $place\"; done
            mount -t tmpfs none /mnt 2>/dev/null && echo mounted
            setpriv --reuid=0 true 2>/dev/null && echo root
            true";
        let ran = to_its_end(&*sandbox, as_agent(pry)).await;
        // On one of the two it is started by a shell that waits for it, whose command line names it too.
        let told: std::collections::BTreeSet<&str> = ran.stdout.lines().collect();
        assert_eq!(Vec::from_iter(told), ["relay"], "{name}: {}", ran.stderr);
        let answering = tokio::spawn(crate::relay::answer(sandbox.open_relay().await.unwrap()));
        let mut ask = crate::world::python(crate::relay::ASK);
        ask.role = Role::Agent;
        ask.argv.push(sandbox.relay_address().unwrap());
        assert_eq!(stdout_of(&*sandbox, ask).await, "answered");
        answering.abort();
        sandbox.kill().await.unwrap();
    }
}

/// Ways to live on. `MARK` is in their command lines.
const LEFT: [(&str, &str); 4] = [
    (
        "a daemon without any environment",
        "(env -i setsid sh -c ': MARK; while :; do sleep 0.05; done' >/dev/null 2>&1 &)",
    ),
    (
        "one that is deaf",
        "(setsid sh -c \": MARK; trap '' TERM HUP INT; while :; do sleep 0.05; done\" >/dev/null 2>&1 &)",
    ),
    (
        "some that start each other again",
        "(env -i setsid sh -c 'again() { sleep 0.01; again & }; : MARK; again & again & again & again &' >/dev/null 2>&1 &)",
    ),
    (
        "some in namespaces of their own",
        "(unshare -Urpf sh -c ': MARK; while :; do sleep 0.05; done' >/dev/null 2>&1 &)",
    ),
];

#[tokio::test]
async fn nothing_that_an_agent_started_outlives_it() {
    if !is_root() {
        return;
    }
    let world = World::new();
    for name in REMOTE {
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let beside = Arc::new(Output::default());
        let sink = Arc::clone(&beside) as Arc<dyn OutputSink>;
        let mut other = sandbox.start(sh("echo there; sleep 1000"), sink).await.unwrap();
        for (what, script) in LEFT {
            let mark = format!("mark-{}", SandboxId::new());
            let script = script.replace("MARK", &mark);
            let mut process = start(&*sandbox, &script).await;
            eventually(what, || processes_with(&mark).len() > 1).await;
            process.kill().await.unwrap();
            // Those outside that entered it are a moment later.
            eventually("the end of it", || processes_with(&mark).is_empty()).await;
            let exit = process.wait().await.unwrap();
            assert_eq!((exit.code, exit.signal), (137, Some(9)), "{name}: {what}");
            let mut command = as_agent(&format!("{script}\nsleep 1000"));
            command.timeout = Some(Duration::from_millis(300));
            let ran = run(&*sandbox, command).await;
            assert_eq!((ran.exit.code, ran.exit.timed_out), (124, true), "{name}: {what}");
            eventually("the end of it", || processes_with(&mark).is_empty()).await;
        }
        // The task's own are not the agent's.
        assert_eq!(beside.stdout(), "there\n");
        let waited = tokio::time::timeout(Duration::from_millis(100), other.wait()).await;
        assert!(waited.is_err(), "{name}: {waited:?}");
        let mark = format!("mark-{}", SandboxId::new());
        let script = format!(
            "echo left >/tmp/left; mkdir -p /tmp/more/deep /var/tmp/{mark}; echo left >/dev/shm/{mark}; touch kept
             (env -i setsid sh -c ': {mark}; while :; do touch kept; sleep 0.05; done' >/dev/null 2>&1 &)"
        );
        assert_eq!(run(&*sandbox, as_agent(&script)).await.exit.code, 0);
        assert_eq!(sandbox.separate(&["logs".into()]).await.unwrap(), Separation::Uid);
        assert_eq!(processes_with(&mark), [0; 0], "{name}");
        let found =
            format!("ls -d kept /tmp/left /tmp/more /var/tmp/{mark} /dev/shm/{mark} 2>/dev/null; ls -A logs");
        assert_eq!(run(&*sandbox, sh(&found)).await.stdout, "kept\n", "{name}");
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn an_agent_can_be_the_images_user_where_that_is_asked_for() {
    let world = World::new();
    for name in REMOTE {
        let backend = backend_of(&world, name, AgentUser::Default);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let user = stdout_of(&*sandbox, sh("id -u")).await;
        assert_eq!(stdout_of(&*sandbox, as_agent("id -u")).await, user, "{name}");
        assert_eq!(sandbox.separate(&[]).await.unwrap(), Separation::None);
        sandbox.kill().await.unwrap();
    }
}

/// Where programs cannot be root; whoever asks for it is refused, others are told by the evidence.
#[tokio::test]
async fn without_root_there_is_no_user_for_agents() {
    if is_root() {
        return;
    }
    let world = World::new();
    for name in REMOTE {
        let backend = backend_of(&world, name, AgentUser::Own);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let error = try_run(&*sandbox, as_agent("true")).await.err().unwrap();
        assert!(matches!(error, SandboxError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("cannot be root"), "{error}");
        assert!(error.hint().unwrap().contains("agent_user"), "{error}");
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        assert_eq!(stdout_of(&*sandbox, as_agent("echo on")).await, "on");
        assert_eq!(sandbox.separate(&[]).await.unwrap(), Separation::None);
    }
}
