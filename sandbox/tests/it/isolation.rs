use crate::world::{World, is_root, processes_with, python, run, sh, spec, stdout_of};
use dressage_sandbox::lease::Lease;
use dressage_sandbox::{BackendConfig, SandboxError};
use dressage_wire::ids::SandboxId;
use dressage_wire::task::NetworkPolicy;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;

/// A file of this machine that is removed with this value.
struct Canary(PathBuf);

impl Canary {
    /// Readable by everybody, in a folder that is not to be seen inside.
    fn put(folder: &str, text: &str) -> Self {
        let path = PathBuf::from(folder).join(format!("dressage-canary-{}", SandboxId::new()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn canaries_on_this_machine_are_not_seen() {
    let world = World::new();
    let sandbox = world.local().await;
    let text = format!("canary-{}", SandboxId::new());
    let folders: &[&str] = match is_root() {
        true => &[
            "/root", "/home", "/var/lib", "/var/tmp", "/run", "/etc", "/tmp", "/",
        ],
        false => &["/var/tmp", "/tmp"],
    };
    let canaries: Vec<Canary> = folders.iter().map(|folder| Canary::put(folder, &text)).collect();
    for canary in &canaries {
        let path = canary.0.to_str().unwrap();
        assert_eq!(
            run(&*sandbox, sh(&format!("cat {path}"))).await.exit.code,
            1,
            "{path}"
        );
        assert!(
            matches!(
                sandbox.read_file(path, 1000).await,
                Err(SandboxError::NotFound { .. })
            ),
            "{path}"
        );
    }
    // By content, wherever it may hide; /usr is this machine's own and public, /proc and /dev are not files.
    let search =
        format!("grep -rIl --exclude-dir=usr --exclude-dir=proc --exclude-dir=dev {text} / 2>/dev/null");
    assert_eq!(run(&*sandbox, sh(&search)).await.stdout, "");
    for path in [
        "/etc/shadow",
        "/etc/gshadow",
        "/root",
        "/var/lib",
        "/var/log",
        "/sys",
        "/boot",
        "/mnt",
        "/srv",
        "/old_root",
    ] {
        assert!(!sandbox.exists(path).await.unwrap(), "{path}");
    }
    // The data directory with everybody's homes and leases neither.
    assert!(
        !sandbox
            .exists(world.config.data_dir.to_str().unwrap())
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn only_what_is_named_is_there() {
    let world = World::new();
    let sandbox = world.local().await;
    let top = stdout_of(&*sandbox, sh("ls -A /")).await;
    for name in top.lines() {
        let known = [
            "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc", "run", "sbin",
            "tmp", "usr", "var",
        ];
        assert!(known.contains(&name), "/{name}");
    }
    let etc = stdout_of(&*sandbox, sh("ls -A /etc")).await;
    for name in etc.lines() {
        let known = [
            "alternatives",
            "ca-certificates",
            "group",
            "hosts",
            "ld.so.cache",
            "ld.so.conf",
            "ld.so.conf.d",
            "localtime",
            "mime.types",
            "nsswitch.conf",
            "passwd",
            "resolv.conf",
            "ssl",
        ];
        assert!(known.contains(&name), "/etc/{name}");
    }
    assert_eq!(stdout_of(&*sandbox, sh("ls -A /etc/ssl; ls -A /home /opt/dressage /run /tmp /var; id -un; hostname")).await,
        "certs\n/home:\nuser\n\n/opt/dressage:\nbin\ndressage-tap\n\n/run:\n\n/tmp:\n\n/var:\ntmp\nuser\ndressage"
            .replace("bin\n", if std::path::Path::new("/usr/bin/python").exists() { "" } else { "bin\n" }));
}

#[tokio::test]
async fn nothing_of_this_machine_but_the_home_can_be_written() {
    let world = World::new();
    let sandbox = world.local().await;
    let mounts = stdout_of(&*sandbox, sh("cat /proc/mounts")).await;
    let writable: Vec<&str> = mounts
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let (point, kind, options) = (fields[1], fields[2], fields[3]);
            let ours = matches!(kind, "tmpfs" | "proc" | "devpts" | "mqueue") || point.starts_with("/dev/");
            (!ours && options.split(',').any(|option| option == "rw")).then_some(point)
        })
        .collect();
    assert_eq!(writable, ["/home/user"]);
    for place in ["/", "/usr", "/etc", "/opt", "/opt/dressage", "/home", "/usr/bin"] {
        assert_ne!(
            run(&*sandbox, sh(&format!("touch {place}/forged")))
                .await
                .exit
                .code,
            0,
            "{place}"
        );
    }
    for place in ["/tmp", "/var/tmp", "/run", "/home/user", "/dev/shm"] {
        stdout_of(&*sandbox, sh(&format!("touch {place}/mine"))).await;
    }
}

#[tokio::test]
async fn a_program_is_nobody_on_this_machine_and_has_no_way_up() {
    let world = World::new();
    let (one, two) = (world.local().await, world.local().await);
    let mark = format!("mark-{}", SandboxId::new());
    let mut uids = Vec::new();
    for sandbox in [&one, &two] {
        let script = format!("setsid sh -c ': {mark}; sleep 1000; :' >/dev/null 2>&1 & sleep 0.1");
        stdout_of(&**sandbox, sh(&script)).await;
    }
    let pids = processes_with(&mark);
    for pid in &pids {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        let ids: Vec<u32> = line
            .split_whitespace()
            .skip(1)
            .map(|id| id.parse().unwrap())
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0] && *id != 0), "{line}");
        uids.push(ids[0]);
        let groups = status.lines().find(|line| line.starts_with("Groups:")).unwrap();
        assert_eq!(
            groups.split_whitespace().count(),
            if is_root() {
                1
            } else {
                groups.split_whitespace().count()
            }
        );
    }
    uids.sort_unstable();
    uids.dedup();
    assert_eq!(
        uids.len(),
        if is_root() { 2 } else { 1 },
        "one user a sandbox where root can give them out"
    );
    // Neither sees the other's processes.
    let seen = stdout_of(
        &*one,
        sh("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"),
    )
    .await;
    assert_eq!(seen.matches(&mark).count(), 1, "{seen}");
    let status = stdout_of(
        &*one,
        sh("grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs)' /proc/self/status"),
    )
    .await;
    for line in status.lines() {
        let expected = if line.starts_with("NoNewPrivs") {
            "1"
        } else {
            "0000000000000000"
        };
        assert_eq!(line.split_whitespace().nth(1), Some(expected), "{line}");
    }
    assert_ne!(run(&*one, sh("unshare -U true")).await.exit.code, 0);
    assert_ne!(
        run(&*one, sh("unshare -r mount -t tmpfs x /tmp")).await.exit.code,
        0
    );
    assert_eq!(
        stdout_of(&*one, sh("id -u; id -g; id -G")).await,
        "1000\n1000\n1000"
    );
}

/// What a hostile program tries on init. Prints what it managed to do.
pub const ATTACKS: &str = r#"
import ctypes, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def tries(name, attempt):
    try:
        result = attempt()
        if result is not None and result is not False:
            print(name, result)
    except OSError:
        pass
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
for victim in (1, os.getppid()):
    tries('fds', lambda: os.listdir(f'/proc/{victim}/fd'))
    tries('open fd', lambda: os.open(f'/proc/{victim}/fd/3', os.O_RDWR))
    tries('mem', lambda: os.open(f'/proc/{victim}/mem', os.O_RDWR))
    tries('environ', lambda: open(f'/proc/{victim}/environ', 'rb').read())
    tries('root', lambda: os.listdir(f'/proc/{victim}/root'))
    tries('attach', lambda: call(101, 16, victim, 0, 0))
    tries('seize', lambda: call(101, 0x4206, victim, 0, 0))
    pidfd = call(434, victim, 0)
    for number in range(3, 20):
        tries('getfd', lambda: call(438, pidfd, number, 0))
    buffer = ctypes.create_string_buffer(8)
    class Iovec(ctypes.Structure):
        _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
    local, remote = Iovec(ctypes.addressof(buffer), 8), Iovec(0x400000, 8)
    tries('read memory', lambda: call(310, victim, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
    tries('signal', lambda: os.kill(1, number))
print('tried')
"#;

#[tokio::test]
async fn an_agent_cannot_open_trace_signal_or_read_init_or_its_guard() {
    let world = World::new();
    let mut spec = spec();
    spec.relay_port = Some(7000);
    let sandbox = world.backend("local").create(spec).await.unwrap();
    assert_eq!(stdout_of(&*sandbox, python(ATTACKS)).await, "tried");
    assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
    // Everything but init and itself.
    let exit = run(&*sandbox, python("import os; os.kill(-1, 9); print('alive')"))
        .await
        .exit;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
}

#[tokio::test]
async fn an_agent_cannot_take_the_relays_place() {
    let world = World::new();
    let mut spec = spec();
    spec.relay_port = Some(7000);
    let sandbox = world.backend("local").create(spec).await.unwrap();
    assert_eq!(sandbox.relay_address().unwrap(), "127.0.0.1:7000");
    let take = "
import socket
for address in ('127.0.0.1', '0.0.0.0', ''):
    for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
        s = socket.socket()
        for option in options:
            s.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            s.bind((address, 7000))
            s.listen()
            print('taken', address, options)
        except OSError:
            pass
print('tried')";
    assert_eq!(stdout_of(&*sandbox, python(take)).await, "tried");
    // There is no socket file anywhere that could be opened, removed or answered on.
    assert_eq!(
        run(
            &*sandbox,
            sh("find / -xdev -type s 2>/dev/null; tail -n +2 /proc/net/unix | grep -v '@' | awk '$8'")
        )
        .await
        .stdout,
        ""
    );
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    (listener, port)
}

#[tokio::test]
async fn without_a_network_there_is_loopback_and_nothing_else() {
    let world = World::new();
    let sandbox = world.local().await;
    let (listener, port) = listener();
    let interfaces = stdout_of(
        &*sandbox,
        sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; cat /proc/net/route | wc -l"),
    )
    .await;
    assert_eq!(interfaces, "lo\n1");
    let connect = format!(
        "
import socket
for host in ('127.0.0.1', '::1', '192.0.2.2', '1.1.1.1', 'localhost'):
    try:
        socket.create_connection((host, {port}), 3)
        print('reached', host)
    except OSError:
        pass
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
socket.create_connection(s.getsockname(), 3)
print('own loopback works')"
    );
    assert_eq!(stdout_of(&*sandbox, python(&connect)).await, "own loopback works");
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
}

#[tokio::test]
async fn an_abstract_socket_of_this_machine_is_out_of_reach() {
    use std::os::linux::net::SocketAddrExt;
    let world = World::new();
    let sandbox = world.local().await;
    let name = format!("dressage-{}", SandboxId::new());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let script = format!("import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')");
    let ran = run(&*sandbox, python(&script)).await;
    assert!(ran.stderr.contains("ConnectionRefusedError"), "{}", ran.stderr);
}

#[tokio::test]
async fn an_open_network_is_up_and_the_hosts_loopback_out_of_reach() {
    let world = World::new();
    let backend = world.backend("local");
    let mut spec = spec();
    spec.network = NetworkPolicy::Open;
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    if device.is_err() {
        // This user cannot have it on this machine: refused with the remedy.
        let error = backend.create(spec).await.err().unwrap();
        assert!(matches!(error, SandboxError::Unavailable { .. }), "{error}");
        assert!(error.hint().unwrap().contains("/dev/net/tun"));
        return;
    }
    let sandbox = backend.create(spec).await.unwrap();
    let routes = stdout_of(
        &*sandbox,
        sh("awk 'NR > 1 && $2 == \"00000000\" {print $3}' /proc/net/route"),
    )
    .await;
    let gateway: String = {
        let number = u32::from_str_radix(routes.lines().next().expect("a default route"), 16).unwrap();
        std::net::Ipv4Addr::from(number.swap_bytes()).to_string()
    };
    let (listener, port) = listener();
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    everywhere.set_nonblocking(true).unwrap();
    let open_port = everywhere.local_addr().unwrap().port();
    let connect = format!(
        "
import socket
for host in ('127.0.0.1', '127.0.0.53', '::1', 'localhost', '{gateway}', '10.0.2.2', '10.0.2.3'):
    for port in ({port}, {open_port}):
        try:
            socket.create_connection((host, port), 1)
            print('reached', host, port)
        except OSError:
            pass
print('tried')"
    );
    assert_eq!(stdout_of(&*sandbox, python(&connect)).await, "tried");
    for listener in [&listener, &everywhere] {
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
    }
    // And no port of the sandbox appears on this machine.
    let serve = "import socket, time
s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(1000)";
    let output = std::sync::Arc::new(crate::world::Output::default());
    let mut server = sandbox.start(python(serve), output.clone()).await.unwrap();
    crate::world::eventually("the port", || output.stdout().ends_with('\n')).await;
    let inside: u16 = output.stdout().trim().parse().unwrap();
    if let Ok(mut connection) = std::net::TcpStream::connect(("127.0.0.1", inside)) {
        // Somebody else's: it is not the sandbox that answers, which would keep it open.
        connection
            .set_read_timeout(Some(std::time::Duration::from_secs(1)))
            .unwrap();
        assert!(
            !matches!(connection.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        );
    }
    server.kill().await.unwrap();
    sandbox.kill().await.unwrap();
    let id = sandbox.id().to_string();
    assert_eq!(processes_with(&id), Vec::<i32>::new());
}

#[tokio::test]
async fn assets_are_seen_read_only() {
    let world = World::new();
    let folder = world.folder.path().join("agent");
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    std::fs::write(folder.join("bin/agent"), "#!/bin/sh\necho agent\n").unwrap();
    std::fs::set_permissions(
        folder.join("bin/agent"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    for backend in world.backends() {
        let mut spec = spec();
        spec.assets = vec![dressage_sandbox::Asset {
            name: "agent".into(),
            host_path: folder.clone(),
        }];
        let sandbox = backend.create(spec).await.unwrap();
        let path = sandbox.asset_path("agent").unwrap();
        assert_eq!(sandbox.asset_path("other"), None);
        assert_eq!(
            stdout_of(&*sandbox, sh(&format!("{path}/bin/agent"))).await,
            "agent"
        );
        if backend.name() != "process" {
            assert_eq!(path, "/opt/dressage/assets/agent");
            assert_ne!(
                run(&*sandbox, sh(&format!("echo x > {path}/bin/agent")))
                    .await
                    .exit
                    .code,
                0
            );
        }
    }
}

#[tokio::test]
async fn an_asset_that_is_not_there_is_named_and_nothing_remains() {
    let world = World::new();
    let mut spec = spec();
    spec.assets = vec![dressage_sandbox::Asset {
        name: "agent".into(),
        host_path: "/no/such/folder".into(),
    }];
    let error = world.backend("local").create(spec).await.err().unwrap();
    assert!(
        error.to_string().contains("asset `agent`: `/no/such/folder`"),
        "{error}"
    );
    assert_eq!(Lease::all(&world.config.data_dir).unwrap().0, []);
}

#[tokio::test]
async fn another_home_has_a_link_from_the_usual_one() {
    let world = World::new();
    let backend = world.backend("local");
    for home in ["/root", "/workspace/agent"] {
        assert!(backend.gives_home(home));
        let mut spec = spec();
        spec.home = home.into();
        let sandbox = backend.create(spec).await.unwrap();
        assert_eq!(
            stdout_of(
                &*sandbox,
                sh("echo $HOME; pwd; readlink /home/user; echo x > /home/user/file; cat ~/file")
            )
            .await,
            format!("{home}\n{home}\n{home}\nx")
        );
    }
    let mut spec = spec();
    spec.home = "/etc".into();
    assert!(!backend.gives_home("/etc"));
    assert!(matches!(
        backend.create(spec).await.err().unwrap(),
        SandboxError::Unsupported { .. }
    ));
}

#[tokio::test]
async fn without_bubblewrap_local_is_unavailable_and_says_what_to_install() {
    let world = World::new();
    let config = BackendConfig {
        bubblewrap: Some("/no/such/bwrap".into()),
        ..world.config.clone()
    };
    let error = (dressage_sandbox::by_name("local").unwrap().make)(&config)
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "backend `local` is not available: bubblewrap (the program bwrap) is not installed"
    );
    assert!(error.hint().unwrap().contains("apt-get install bubblewrap"));
}
