use crate::control::Control;
use crate::controlled::Built;
use crate::estate::Estate;
use crate::kernel::ChildSetup;
use crate::processes::{Ending, Processes};
use crate::spawn::{Launch, OwnedChild, spawn};
use crate::{Channel, SandboxError};
use dressage_wire::ids::SandboxId;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;

/// How long init may take to say that it is ready. A machine under load takes a second.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The host's ends of the connections to an init that is yet to be started, and what the latter is told.
pub(crate) struct Wiring {
    control: StdUnixStream,
    relay: Option<StdUnixStream>,
    egress: Option<StdUnixStream>,
    inherited: Vec<OwnedFd>,
    arguments: Vec<OsString>,
}

/// Limits that init sets for the sandbox where no control group does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnLimits {
    pub(crate) processes: Option<u64>,
    pub(crate) data_bytes: Option<u64>,
}

impl Wiring {
    /// Connections for an init, with a relay where one is to listen, and a way to the host's proxy where that is.
    pub(crate) fn new(
        relay_listen: Option<SocketAddr>,
        egress_listen: Option<SocketAddr>,
        lifetime: Option<Duration>,
        limits: OwnLimits,
    ) -> io::Result<Self> {
        let (control, theirs) = StdUnixStream::pair()?;
        let mut wiring = Self {
            control,
            relay: None,
            egress: None,
            inherited: Vec::new(),
            arguments: vec!["init".into()],
        };
        wiring.tell("--control-fd", theirs.as_raw_fd());
        wiring.inherited.push(theirs.into());
        if let Some(listen) = relay_listen {
            let (relay, theirs) = StdUnixStream::pair()?;
            wiring.tell("--relay-fd", theirs.as_raw_fd());
            wiring.tell("--relay-listen", listen);
            wiring.relay = Some(relay);
            wiring.inherited.push(theirs.into());
        }
        if let Some(listen) = egress_listen {
            let (egress, theirs) = StdUnixStream::pair()?;
            wiring.tell("--egress-fd", theirs.as_raw_fd());
            wiring.tell("--egress-listen", listen);
            wiring.egress = Some(egress);
            wiring.inherited.push(theirs.into());
        }
        if let Some(processes) = limits.processes {
            wiring.tell("--max-processes", processes);
        }
        if let Some(bytes) = limits.data_bytes {
            wiring.tell("--max-data-bytes", bytes);
        }
        if let Some(lifetime) = lifetime {
            wiring.tell("--lifetime-ms", lifetime.as_millis().min(u128::from(u64::MAX)));
        }
        Ok(wiring)
    }

    /// What follows the name of `dressage-tap`.
    pub(crate) fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    fn tell(&mut self, name: &str, value: impl ToString) {
        self.arguments.push(name.into());
        self.arguments.push(value.to_string().into());
    }

    /// Starts `command`, which is to become init, or to make init its child, under the name by which a sweep would find it.
    pub(crate) async fn start(
        &mut self,
        mut command: Command,
        estate: &Arc<Estate>,
        more_inherited: Vec<OwnedFd>,
    ) -> io::Result<OwnedChild> {
        command.env_clear().arg0(estate.process_name());
        let mut inherited = std::mem::take(&mut self.inherited);
        inherited.extend(more_inherited);
        let setup = ChildSetup {
            inherited,
            cgroups: estate.entrances()?,
            identity: estate.uid(),
            ..ChildSetup::default()
        };
        spawn(Launch {
            command,
            setup,
            holds: Box::new(Arc::clone(estate)),
        })
        .await
    }

    /// The processes that were started, with `init` the number of init on this machine.
    pub(crate) fn body(
        &self,
        init: i32,
        ending: Ending,
        child: OwnedChild,
        estate: &Arc<Estate>,
    ) -> io::Result<Processes> {
        Processes::new(
            init,
            self.control.try_clone()?,
            ending,
            vec![child],
            Arc::clone(estate),
        )
    }

    /// Waits for init to be ready.
    pub(crate) async fn connect(
        self,
        sandbox: SandboxId,
        mut body: Processes,
    ) -> Result<Built, SandboxError> {
        let failed = |step: &str, source: io::Error| SandboxError::Create {
            step: step.to_owned(),
            source: Some(source),
        };
        let socket = |socket: StdUnixStream| {
            socket.set_nonblocking(true)?;
            UnixStream::from_std(socket)
        };
        let control = socket(self.control).map_err(|source| failed("connect to its init", source))?;
        let relay = self
            .relay
            .map(socket)
            .transpose()
            .map_err(|source| failed("connect to its relay", source))?;
        let egress = self
            .egress
            .map(socket)
            .transpose()
            .map_err(|source| failed("connect to its way out", source))?;
        let (reader, writer) = control.into_split();
        let connecting = Control::connect(sandbox, reader, writer);
        let connected = tokio::time::timeout(READY_TIMEOUT, connecting).await;
        let boxed = |channel| Box::new(channel) as Box<dyn Channel>;
        match connected {
            Ok(Ok((control, hello))) => Ok(Built {
                body: Box::new(body),
                control: Arc::new(control),
                relay: relay.map(boxed),
                egress: egress.map(boxed),
                relay_address: hello.relay_address,
            }),
            Ok(Err(error)) => {
                let complaints = body.complaints();
                let said = if complaints.is_empty() {
                    error.to_string()
                } else {
                    complaints
                };
                Err(failed("start its init", io::Error::other(said)))
            }
            Err(_) => Err(failed("start its init", io::Error::from(io::ErrorKind::TimedOut))),
        }
    }
}
