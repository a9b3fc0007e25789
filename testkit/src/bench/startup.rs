//! How long a program takes from its start to its first answer, and the memory it holds once idle.

use super::measurement::{MeasureError, Measurement, Sample, turned};
use super::process::{Program, tree_usage};
use super::proxies::{Proxy, Setting};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest a program may take to answer.
const LIMIT: Duration = Duration::from_secs(20);
/// After this a program that has answered is idle.
const SETTLED: Duration = Duration::from_millis(300);

/// Starts each proxy a few times a repetition.
#[derive(Debug)]
pub struct Startup {
    setting: Setting,
    proxies: Vec<Proxy>,
    starts: usize,
}

impl Startup {
    /// Starts `proxies`, `starts` times each a repetition.
    #[must_use]
    pub fn new(setting: Setting, proxies: Vec<Proxy>, starts: usize) -> Self {
        Self {
            setting,
            proxies,
            starts,
        }
    }
}

impl Measurement for Startup {
    fn name(&self) -> &str {
        "startup"
    }

    fn repeat(&mut self, repetition: usize) -> Result<Vec<Sample>, MeasureError> {
        let mut samples = Vec::new();
        for start in 0..self.starts {
            for proxy in turned(&self.proxies, repetition + start) {
                let (program, _, cold_start) = start_proxy(&self.setting, &proxy)?;
                std::thread::sleep(SETTLED);
                let values = BTreeMap::from([
                    ("cold_start_ms".to_owned(), cold_start.as_secs_f64() * 1e3),
                    (
                        "idle_rss_mb".to_owned(),
                        tree_usage(program.id()).rss_kb as f64 / 1024.0,
                    ),
                ]);
                samples.push(Sample {
                    scenario: "startup".into(),
                    target: proxy.name,
                    repetition,
                    values,
                    error: None,
                });
            }
        }
        Ok(samples)
    }
}

/// Starts a proxy on a free port; where it listens, and how long it took until it answered.
pub(super) fn start_proxy(
    setting: &Setting,
    proxy: &Proxy,
) -> Result<(Program, SocketAddr, Duration), MeasureError> {
    let failed = |source| MeasureError::Program {
        program: proxy.name.clone(),
        source,
    };
    let address = super::process::free_port().map_err(failed)?;
    let log = setting.directory.join(format!("{}.log", proxy.name));
    let begun = Instant::now();
    let mut program = Program::start(proxy.command(setting, address.port()), &log).map_err(failed)?;
    while !answers(address, "/healthz") {
        let ended = program.has_ended().map_err(failed)?;
        if ended || begun.elapsed() > LIMIT {
            let url = format!("http://{address}/healthz");
            let limit_s = LIMIT.as_secs();
            return Err(MeasureError::Silent {
                program: proxy.name.clone(),
                url,
                limit_s,
                log,
            });
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok((program, address, begun.elapsed()))
}

/// Whether a GET is answered with status 200.
pub(super) fn answers(address: SocketAddr, path: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
        )?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        // A relay has nothing at this path, and is there all the same once it says so.
        Ok(head.ends_with(b" 200") || head.ends_with(b" 404"))
    };
    ask().unwrap_or(false)
}
