use super::network::{self, Helper};
use super::skeleton::Skeleton;
use super::{NAME, system};
use crate::cgroup::{Controller, Hierarchies};
use crate::lease::Lease;
use crate::{Asset, BackendConfig, Report, SandboxError};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where bubblewrap is looked for.
const USUAL_PLACES: [&str; 3] = ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"];

/// The first version that can forbid further user namespaces inside.
const FORBIDS_USER_NAMESPACES: (u32, u32) = (0, 8);

const INSTALL: &str = "install bubblewrap (apt-get install bubblewrap), or use the backend `process`";

const MOVE: &str = "choose folders that others can enter, with --data-dir and DRESSAGE_CACHE_DIR";

/// What sandboxes on this machine are made with.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) bubblewrap: PathBuf,
    pub(super) version: (u32, u32),
    pub(super) tap_binary: PathBuf,
    pub(super) ripgrep: Option<PathBuf>,
    pub(super) skeleton: Skeleton,
    pub(super) cache_dir: PathBuf,
    /// What can connect a sandbox to the outside, the better one first.
    pub(super) network: Vec<Helper>,
}

impl Machine {
    /// Looks for what is needed, and fails with what is missing.
    pub(super) fn look(config: &BackendConfig) -> Result<Self, SandboxError> {
        let unavailable = |reason: String, remedy| SandboxError::Unavailable {
            backend: NAME,
            reason,
            remedy,
        };
        let bubblewrap = find_bubblewrap(config).ok_or_else(|| {
            unavailable(
                "bubblewrap (the program bwrap) is not installed".into(),
                Some(INSTALL),
            )
        })?;
        let version = bubblewrap_version(&bubblewrap).ok_or_else(|| {
            unavailable(
                format!("`{}` does not tell its version", bubblewrap.display()),
                Some(INSTALL),
            )
        })?;
        let homes = Lease::homes_directory(&config.data_dir);
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(&homes)
            .map_err(|error| unavailable(format!("`{}` cannot be made: {error}", homes.display()), None))?;
        let skeleton = Skeleton::make(&config.cache_dir).map_err(|error| {
            unavailable(
                format!("`{}` cannot be written: {error}", config.cache_dir.display()),
                None,
            )
        })?;
        for path in [&homes, &config.tap_binary, &config.cache_dir] {
            check_reach(path).map_err(|reason| unavailable(reason, Some(MOVE)))?;
        }
        Ok(Self {
            bubblewrap,
            version,
            tap_binary: config.tap_binary.clone(),
            ripgrep: config.ripgrep.clone().filter(|_| !system::has_program("rg")),
            skeleton,
            cache_dir: config.cache_dir.clone(),
            network: Helper::find(),
        })
    }

    pub(super) fn forbids_user_namespaces(&self) -> bool {
        self.version >= FORBIDS_USER_NAMESPACES
    }

    /// Fails where an asset is not there, or not for the user that the sandbox runs as.
    pub(super) fn check_asset(&self, asset: &Asset) -> Result<(), SandboxError> {
        let unsupported = |what: String| Err(SandboxError::Unsupported { backend: NAME, what });
        if asset.name.is_empty() || asset.name.starts_with('.') || asset.name.contains(['/', '\0']) {
            return unsupported(format!("an asset named `{}`", asset.name));
        }
        match check_reach(&asset.host_path) {
            Ok(()) => Ok(()),
            Err(reason) => unsupported(format!("asset `{}`: {reason}", asset.name)),
        }
    }
}

/// Whether sandboxes can reach a path: as root they run as other users, who must be able to enter every folder on the way.
fn check_reach(path: &Path) -> Result<(), String> {
    let path = path
        .canonicalize()
        .map_err(|error| format!("`{}`: {error}", path.display()))?;
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    for folder in path.ancestors() {
        let mode = folder
            .metadata()
            .map_err(|error| format!("`{}`: {error}", folder.display()))?
            .mode();
        if mode & 0o001 == 0 {
            return Err(format!(
                "`{}` cannot be entered by other users, as which root's sandboxes run, and `{}` is in it",
                folder.display(),
                path.display()
            ));
        }
    }
    Ok(())
}

fn find_bubblewrap(config: &BackendConfig) -> Option<PathBuf> {
    match &config.bubblewrap {
        Some(path) => path.exists().then(|| path.clone()),
        None => USUAL_PLACES.iter().map(PathBuf::from).find(|path| path.exists()),
    }
}

fn bubblewrap_version(bubblewrap: &Path) -> Option<(u32, u32)> {
    let output = Command::new(bubblewrap)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .ok()?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
}

/// From `bubblewrap 0.8.0`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().rsplit(' ').next()?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// What this machine can do, for people.
pub(super) fn report(config: &BackendConfig) -> Report {
    let mut report = Report::default();
    let hierarchies = Hierarchies::detect();
    match Machine::look(config) {
        Ok(machine) => {
            let (major, minor) = machine.version;
            report.fact(
                "bubblewrap",
                format!("{major}.{minor}, {}", machine.bubblewrap.display()),
            );
            let nested = if machine.forbids_user_namespaces() {
                "forbidden"
            } else {
                "possible"
            };
            report.fact("user namespaces inside", nested);
            if let Err(said) = try_it(&machine.bubblewrap) {
                report.problem = Some(format!("bubblewrap does not work here: {said}"));
                report.hint = Some(
                    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, or \
                     kernel.apparmor_restrict_unprivileged_userns=0), or use the backend `process`"
                        .into(),
                );
            }
            let helpers: Vec<_> = machine.network.iter().map(Helper::describe).collect();
            let network = match network::obstacle(&machine.network) {
                Some(obstacle) => format!("none only: {}", obstacle.reason),
                None => format!("none, open (through {})", helpers.join(" or ")),
            };
            report.fact("networks", network);
        }
        Err(error) => {
            report.hint = error.hint();
            report.problem = Some(error.to_string());
        }
    }
    report.fact("control groups", hierarchies.describe());
    report.fact("limits", describe_limits(&hierarchies));
    report
}

fn describe_limits(hierarchies: &Hierarchies) -> String {
    let bound = |controller, otherwise: &str| match hierarchies.limits(controller) {
        true => "control group".to_owned(),
        false => otherwise.to_owned(),
    };
    format!(
        "memory: {}; processes: {}; processors: {}",
        bound(Controller::Memory, "rlimit of each process"),
        bound(Controller::Pids, "rlimit"),
        bound(Controller::Cpu, "not limited"),
    )
}

/// Runs `true` in every namespace there is.
fn try_it(bubblewrap: &Path) -> Result<(), String> {
    let output = Command::new(bubblewrap)
        .args([
            "--unshare-all",
            "--die-with-parent",
            "--ro-bind",
            "/usr",
            "/usr",
            "--symlink",
            "usr/bin",
            "/bin",
        ])
        .args([
            "--symlink",
            "usr/lib",
            "/lib",
            "--symlink",
            "usr/lib64",
            "/lib64",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
        ])
        .args(["--", "/usr/bin/true"])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn versions_are_read() {
        assert_eq!(parse_version("bubblewrap 0.8.0\n"), Some((0, 8)));
        assert_eq!(parse_version("bubblewrap 0.11.0"), Some((0, 11)));
        assert_eq!(parse_version("what"), None);
    }

    #[test]
    fn a_folder_that_others_cannot_enter_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let result = check_reach(&inner);
        if nix::unistd::geteuid().is_root() {
            assert!(
                result
                    .unwrap_err()
                    .starts_with(&format!("`{}`", folder.path().display()))
            );
        } else {
            result.unwrap();
        }
    }
}
