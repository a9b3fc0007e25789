use super::accounts::USER;
use super::container::{Bring, Container};
use super::holdings::Holdings;
use bollard::models::{ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType};
use dressage_wire::task::NetworkPolicy;
use std::collections::HashMap;

/// What programs of root may do besides, for packages to be installed: no more than with files and users of the container.
const CAPABILITIES_OF_ROOT: [&str; 7] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
];

impl Container {
    /// What the engine is asked to make.
    pub(super) fn body(&self, holdings: &Holdings, bring: Bring) -> ContainerCreateBody {
        let memory = i64::try_from(self.spec.size.memory_bytes).unwrap_or(i64::MAX);
        let scratch =
            |mode: &str, part: i64| format!("rw,exec,nosuid,nodev,mode={mode},size={}", memory / part);
        // Files here count as memory: full, they must leave some to the programs, and to init. They are new each time it is
        // started, unlike what the rest of the container has.
        let tmpfs = HashMap::from([
            ("/tmp".to_owned(), scratch("1777", 2)),
            ("/var/tmp".to_owned(), scratch("1777", 8)),
            ("/run".to_owned(), scratch("0755", 8)),
        ]);
        let shown = [(self.tap_binary.clone(), self.program())]
            .into_iter()
            .chain(self.assets().map(|(_, host, inside)| (host, inside)));
        let mounts = shown
            .filter(|_| bring == Bring::Mount)
            .map(|(host, inside)| Mount {
                target: Some(inside),
                source: Some(host.to_string_lossy().into_owned()),
                typ: Some(MountType::BIND),
                read_only: Some(true),
                ..Mount::default()
            });
        let network = match self.spec.network {
            NetworkPolicy::None | NetworkPolicy::Allow(_) => "none",
            NetworkPolicy::Open => "default",
        };
        let host_config = HostConfig {
            memory: Some(memory),
            // Memory and swap together: no swap.
            memory_swap: Some(memory),
            // Not as a number of processors, of which an engine refuses more than the machine has.
            cpu_period: Some(100_000),
            cpu_quota: Some((self.spec.size.cpus * 100_000.0) as i64),
            pids_limit: Some(i64::try_from(self.spec.size.pids).unwrap_or(i64::MAX)),
            network_mode: Some(network.to_owned()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: self
                .is_root_by_name()
                .then(|| CAPABILITIES_OF_ROOT.map(str::to_owned).to_vec()),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            tmpfs: Some(tmpfs),
            mounts: Some(mounts.collect()),
            // Init answers on its standard output; an engine would keep all of it.
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            ..HostConfig::default()
        };
        let mut command = vec!["init".to_owned(), "--control-stdio".to_owned()];
        if !self.spec.lifetime.is_zero() {
            let lifetime_ms = u64::try_from(self.spec.lifetime.as_millis()).unwrap_or(u64::MAX);
            command.extend(["--lifetime-ms".to_owned(), lifetime_ms.to_string()]);
        }
        ContainerCreateBody {
            image: Some(self.image.id.clone()),
            hostname: Some("sandbox".to_owned()),
            user: Some(self.spec.user.clone().unwrap_or_else(|| format!("{USER}:{USER}"))),
            entrypoint: Some(vec![self.program()]),
            cmd: Some(command),
            working_dir: Some("/".to_owned()),
            open_stdin: Some(true),
            // When this process ends, so does the input of init, and with it everything.
            stdin_once: Some(true),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            // One of the image's would run beside the agent.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            labels: Some(holdings.labels().into_iter().collect()),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }

    /// Whether programs are root, as far as the text says that.
    fn is_root_by_name(&self) -> bool {
        matches!(self.spec.user.as_deref(), Some("root" | "0"))
    }
}
