use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A data directory, a home and a working directory of a test's own. The cache of the machine is used as it is: the
/// agent is in it.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        // Sandboxes of root run as other users, which must be able to pass.
        let folder = tempfile::Builder::new()
            .prefix("dressage-it-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir()
            .unwrap();
        for name in ["home", "work"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path("work").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The program with an environment that holds nothing of the caller's but the way to programs.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dressage"));
        self.prepare(&mut command);
        command.args(arguments);
        command
    }

    pub fn prepare(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("DRESSAGE_DATA_DIR", self.data())
            .env("DRESSAGE_CACHE_DIR", cache())
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
    }

    /// A cache directory in which the test kit's scripted agent is in the place of OpenCode.
    pub fn scripted_agent(&self) -> PathBuf {
        let listed = self.run(&["agents", "list", "--json"]).expect(0);
        let agents: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
        let version = agents[0]["pinned_version"].as_str().unwrap();
        let cache = self.path("cache");
        let folder = cache.join("agents/opencode").join(version).join("bin");
        if !folder.exists() {
            std::fs::create_dir_all(&folder).unwrap();
            let built = Path::new(env!("CARGO_BIN_EXE_dressage")).with_file_name("scripted_agent");
            std::fs::copy(&built, folder.join("opencode"))
                .unwrap_or_else(|error| panic!("{error}: run `cargo build --workspace --bins` first"));
        }
        cache
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().unwrap())
    }

    /// Starts the program, its output going to files.
    pub fn start(&self, name: &str, arguments: &[&str]) -> Running {
        let (out, err) = (
            self.path(&format!("{name}.out")),
            self.path(&format!("{name}.err")),
        );
        let child = self
            .command(arguments)
            .stdout(std::fs::File::create(&out).unwrap())
            .stderr(std::fs::File::create(&err).unwrap())
            .spawn()
            .unwrap();
        Running { child, out, err }
    }
}

/// The machine's cache directory, in which `make test` has installed the agent.
pub fn cache() -> PathBuf {
    if let Some(path) = std::env::var_os("DRESSAGE_CACHE_DIR") {
        return path.into();
    }
    if nix::unistd::geteuid().is_root() {
        return "/var/cache/dressage".into();
    }
    match std::env::var_os("XDG_CACHE_HOME") {
        Some(base) => Path::new(&base).join("dressage"),
        None => Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/dressage"),
    }
}

/// What a run of the program came to.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "stdout:\n{}\nstderr:\n{}",
            self.out,
            self.err
        );
        self
    }

    /// Exit code and what was said, without what changes from run to run.
    pub fn redacted(&self, place: &Place) -> String {
        let text = format!(
            "exit {}\n--- stdout\n{}--- stderr\n{}",
            self.code.unwrap(),
            self.out,
            self.err
        );
        redacted(&text, place)
    }
}

/// A program that runs.
pub struct Running {
    pub child: Child,
    pub out: PathBuf,
    pub err: PathBuf,
}

impl Running {
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Waits until something is so; fails after a while, saying what the program said.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(90);
        while !so() {
            let ended = self.child.try_wait().unwrap();
            let said = || std::fs::read_to_string(&self.err).unwrap();
            assert!(
                ended.is_none(),
                "the program ended before {what}: {ended:?}\n{}",
                said()
            );
            assert!(Instant::now() < deadline, "{what} did not come\n{}", said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn wait(mut self) -> Ran {
        let deadline = Instant::now() + Duration::from_secs(90);
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            assert!(Instant::now() < deadline, "the program did not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        Ran {
            code,
            out: read(&self.out),
            err: read(&self.err),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only where a test failed in between; its own child, by its own handle.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Text without ids, times, ports, token counts and folders.
pub fn redacted(text: &str, place: &Place) -> String {
    let text = text
        .replace(place.folder.path().to_str().unwrap(), "[place]")
        .replace(cache().to_str().unwrap(), "[cache]");
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut words: Vec<String> = line.split(' ').map(redacted_word).collect();
        // A time is a number and its unit.
        for position in 1..words.len() {
            let number = words[position - 1].trim_start_matches('(');
            let unit = words[position].trim_end_matches([',', ')']);
            if matches!(unit, "ms" | "s" | "min") && number.parse::<f64>().is_ok() {
                words[position - 1] = "[n]".into();
            }
        }
        // Columns are as wide as what is in them.
        lines.push(
            words
                .iter()
                .filter(|word| !word.is_empty())
                .cloned()
                .collect::<Vec<_>>()
                .join(" "),
        );
    }
    lines.join("\n") + "\n"
}

fn redacted_word(word: &str) -> String {
    let bare = word.trim_matches(|character: char| !character.is_ascii_alphanumeric());
    let is_id = bare.len() == 36 && bare.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let port = bare
        .rsplit_once("127.0.0.1:")
        .map(|(_, rest)| rest.split('/').next().unwrap());
    match port {
        _ if is_id => word.replace(bare, "[id]"),
        Some(port) => word.replace(port, "[port]"),
        None => word.to_owned(),
    }
}

/// A server that gives every request the same answer, and keeps what it was asked.
pub struct Canned {
    pub address: SocketAddr,
    received: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl Canned {
    /// `head` is status line and headers, without length and the empty line.
    pub fn start(head: &str, body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = format!(
            "{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let received = std::sync::Arc::<std::sync::Mutex<Vec<String>>>::default();
        let kept = received.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(mut connection) = connection else { return };
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                // Whoever speaks TLS waits for an answer to its first record.
                let whole = |request: &[u8]| {
                    request.first() == Some(&0x16) || request.windows(4).any(|window| window == b"\r\n\r\n")
                };
                while !whole(&request) {
                    match connection.read(&mut buffer) {
                        Ok(count) if count > 0 => request.extend_from_slice(&buffer[..count]),
                        _ => break,
                    }
                }
                kept.lock()
                    .unwrap()
                    .push(String::from_utf8_lossy(&request).into_owned());
                // A client may have gone.
                let _ = connection.write_all(answer.as_bytes());
            }
        });
        Self { address, received }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }
}
