use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, mpsc};

/// Namespaces of this machine: processes, mounts and a network of its own, with `/home`, `/tmp` and accounts of its own.
pub struct Machine {
    folder: tempfile::TempDir,
    holder: Mutex<Option<Child>>,
    pid: u32,
}

/// The user that templates have, where this is root.
pub const USER: u32 = 1000;

/// As whom a program runs. What is played by an ordinary user has that one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Root,
    User,
}

/// What a program says.
#[derive(Clone, Debug)]
pub enum Said {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// Exit code, or signal.
    Ended(Result<i32, i32>),
}

/// A program in it.
pub struct Program {
    /// On this machine.
    pub pid: u32,
    pub said: broadcast::Sender<Said>,
}

const BRIDGE: &str = "
import os, socket, sys, threading
try: s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)
except OSError: sys.exit(3)
os.write(1, b'+')
def inwards():
    while (data := os.read(0, 65536)): s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=inwards, daemon=True).start()
while (data := s.recv(65536)): os.write(1, data)
os._exit(0)
";

impl Machine {
    pub fn boot() -> Self {
        let folder = tempfile::Builder::new().prefix("machine-").tempdir().unwrap();
        for name in ["home", "tmp"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let anyone = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(folder.path().join("tmp"), anyone).unwrap();
        for (name, line) in [
            ("passwd", "user:x:1000:1000::/home/user:/bin/bash"),
            ("group", "user:x:1000:"),
        ] {
            let here = std::fs::read_to_string(Path::new("/etc").join(name)).unwrap();
            let others = here
                .lines()
                .filter(|other| !other.starts_with("user:") && !other.contains(":1000:"));
            let lines: String = others.chain([line]).map(|line| format!("{line}\n")).collect();
            std::fs::write(folder.path().join(name), lines).unwrap();
        }
        let script = "exec 3>&1; exec bwrap --dev-bind / / --proc /proc --bind \"$1/home\" /home --bind \"$1/tmp\" /tmp \
                      --bind \"$1/passwd\" /etc/passwd --bind \"$1/group\" /etc/group \
                      --unshare-net --unshare-pid --unshare-ipc --die-with-parent --info-fd 3 -- sh -c 'echo ready; exec sleep infinity'";
        let mut holder = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The number comes before the mounts are there.
        let mut pid = None;
        for line in BufReader::new(holder.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "ready" {
                break;
            }
            if let Some((_, number)) = line.split_once("\"child-pid\":") {
                pid = number.trim_matches([' ', ',', '}']).parse().ok();
            }
        }
        let pid = pid.expect("bwrap says the number of its child");
        Self {
            folder,
            holder: Mutex::new(Some(holder)),
            pid,
        }
    }

    /// Where on this machine a path of it is.
    pub fn outside(&self, path: &str) -> Option<PathBuf> {
        let inside = path.strip_prefix('/')?;
        (inside.starts_with("home") || inside.starts_with("tmp")).then(|| self.folder.path().join(inside))
    }

    fn command(&self, argv: &[String], env: &BTreeMap<String, String>, who: Who) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg("-t")
            .arg(self.pid.to_string())
            .args(["-m", "-n", "-p"]);
        if !is_root() {
            command.args(["-U", "--preserve-credentials"]);
        }
        command.arg("--");
        if who == Who::User && is_root() {
            let user = format!("--reuid={USER}");
            let group = format!("--regid={USER}");
            command.args(["setpriv", &user, &group, "--clear-groups", "--"]);
        }
        command
            .args(argv)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .envs(env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a program.
    pub fn start(
        &self,
        argv: &[String],
        env: &BTreeMap<String, String>,
        who: Who,
    ) -> std::io::Result<(Program, broadcast::Receiver<Said>)> {
        let mut child = self.command(argv, env, who).spawn()?;
        let (said, hearing) = broadcast::channel(1 << 16);
        let pipe = |mut from: Box<dyn Read + Send>, wrap: fn(Vec<u8>) -> Said| {
            let said = said.clone();
            std::thread::spawn(move || {
                let mut piece = vec![0; 32 << 10];
                while let Ok(count @ 1..) = from.read(&mut piece) {
                    let _ = said.send(wrap(piece[..count].to_vec()));
                }
            })
        };
        let pipes = [
            pipe(Box::new(child.stdout.take().unwrap()), Said::Stdout),
            pipe(Box::new(child.stderr.take().unwrap()), Said::Stderr),
        ];
        let (pid, ending) = (child.id(), said.clone());
        std::thread::spawn(move || {
            use std::os::unix::process::ExitStatusExt;
            let status = child.wait().unwrap();
            // As envd: what outlives it and holds its pipes holds up the news of its end.
            for pipe in pipes {
                pipe.join().unwrap();
            }
            let ended = status.code().ok_or(status.signal().unwrap_or(9));
            let _ = ending.send(Said::Ended(ended));
        });
        Ok((Program { pid, said }, hearing))
    }

    /// Joins what was asked of a port, and all that follows, to what listens there; `None` where nothing does.
    pub async fn join(&self, port: u16, head: Vec<u8>, mut outside: TcpStream) -> Option<TcpStream> {
        let argv = ["python3", "-c", BRIDGE, &port.to_string()].map(str::to_owned);
        let mut child = self
            .command(&argv, &BTreeMap::new(), Who::Root)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (inwards, mut taking) = mpsc::unbounded_channel::<Vec<u8>>();
        let (giving, mut outwards) = mpsc::unbounded_channel::<Vec<u8>>();
        std::thread::spawn(move || {
            while let Some(bytes) = taking.blocking_recv() {
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
        });
        std::thread::spawn(move || {
            let mut piece = vec![0; 64 << 10];
            while let Ok(count @ 1..) = from.read(&mut piece) {
                if giving.send(piece[..count].to_vec()).is_err() {
                    break;
                }
            }
            let _ = child.kill();
            let _ = child.wait();
        });
        let first = match outwards.recv().await {
            Some(first) => first[1..].to_vec(),
            None => return Some(outside),
        };
        let _ = inwards.send(head);
        let (mut reading, mut writing) = outside.split();
        let _ = writing.write_all(&first).await;
        let mut piece = vec![0; 64 << 10];
        loop {
            tokio::select! {
                read = reading.read(&mut piece) => match read {
                    Ok(count @ 1..) => { let _ = inwards.send(piece[..count].to_vec()); }
                    _ => return None,
                },
                said = outwards.recv() => match said {
                    Some(bytes) => if writing.write_all(&bytes).await.is_err() { return None; },
                    None => return None,
                },
            }
        }
    }

    /// Everything in it ends.
    pub fn end(&self) {
        if let Some(mut holder) = self.holder.lock().unwrap().take() {
            kill(self.pid);
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}

impl Program {
    /// Ends the program itself: the one that entered the machine waits for it outside.
    pub fn kill(&self) {
        let outer = self.pid;
        let inner =
            std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap_or_default();
        for pid in inner.split_whitespace() {
            kill(pid.parse().unwrap());
        }
    }
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn kill(pid: u32) {
    use nix::sys::signal::{Signal, kill};
    let _ = kill(
        nix::unistd::Pid::from_raw(pid.try_into().unwrap()),
        Signal::SIGKILL,
    );
}
