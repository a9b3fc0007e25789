use nix::sys::resource::{Resource, setrlimit};
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

const USAGE: &str = "usage: dressage-tap init (--control-fd NUMBER | --control-stdio) \
                     [--relay-fd NUMBER --relay-listen ADDRESS] [--egress-fd NUMBER --egress-listen ADDRESS] \
                     [--max-processes N] [--max-data-bytes N] [--lifetime-ms N]";

/// What init is told when it is started.
#[derive(Debug, Default)]
pub(super) struct Options {
    /// The socket that the host speaks on; standard input and output if unset.
    pub(super) control_fd: Option<i32>,
    pub(super) relay: Option<RelayOptions>,
    /// The way to a proxy of the host.
    pub(super) egress: Option<RelayOptions>,
    /// Processes and threads, where no control group holds them.
    max_processes: Option<u64>,
    /// Private memory of each process, where no control group holds it.
    max_data_bytes: Option<u64>,
    pub(super) lifetime: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RelayOptions {
    pub(super) fd: i32,
    pub(super) listen: SocketAddr,
}

impl Options {
    pub(super) fn parse(arguments: &[OsString]) -> io::Result<Self> {
        let usage = || io::Error::new(io::ErrorKind::InvalidInput, USAGE);
        let mut options = Self::default();
        let (mut stdio, mut relay_fd, mut relay_listen) = (false, None, None);
        let (mut egress_fd, mut egress_listen) = (None, None);
        let mut rest = arguments
            .iter()
            .map(|argument| argument.to_str().unwrap_or_default());
        while let Some(name) = rest.next() {
            if name == "--control-stdio" {
                stdio = true;
                continue;
            }
            let value = rest.next().ok_or_else(usage)?;
            let number = || value.parse::<u64>().map_err(|_| usage());
            let descriptor = || value.parse::<i32>().map_err(|_| usage());
            match name {
                "--control-fd" => options.control_fd = Some(descriptor()?),
                "--relay-fd" => relay_fd = Some(descriptor()?),
                "--relay-listen" => relay_listen = Some(value.parse().map_err(|_| usage())?),
                "--egress-fd" => egress_fd = Some(descriptor()?),
                "--egress-listen" => egress_listen = Some(value.parse().map_err(|_| usage())?),
                "--max-processes" => options.max_processes = Some(number()?),
                "--max-data-bytes" => options.max_data_bytes = Some(number()?),
                "--lifetime-ms" => options.lifetime = Some(Duration::from_millis(number()?)),
                _ => return Err(usage()),
            }
        }
        if options.control_fd.is_some() == stdio {
            return Err(usage());
        }
        let both = |fd, listen| match (fd, listen) {
            (Some(fd), Some(listen)) => Ok(Some(RelayOptions { fd, listen })),
            (None, None) => Ok(None),
            _ => Err(usage()),
        };
        options.relay = both(relay_fd, relay_listen)?;
        options.egress = both(egress_fd, egress_listen)?;
        Ok(options)
    }

    /// Limits this process and what it starts. Core dumps are never written.
    pub(super) fn limit(&self) -> io::Result<()> {
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        if let Some(processes) = self.max_processes {
            setrlimit(Resource::RLIMIT_NPROC, processes, processes)?;
        }
        if let Some(bytes) = self.max_data_bytes {
            setrlimit(Resource::RLIMIT_DATA, bytes, bytes)?;
        }
        Ok(())
    }
}
