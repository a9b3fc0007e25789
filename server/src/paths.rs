//! Where Dressage keeps things on this machine.

use crate::environment::{Environment, names};
use std::path::{Path, PathBuf};

/// The folders of one installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Rollouts, leases, sandboxes' homes.
    pub data: PathBuf,
    /// Agents and the embedded program: all of it can be made again.
    pub cache: PathBuf,
}

/// No folder is known for something.
#[derive(Debug, thiserror::Error)]
pub enum PathsError {
    /// Neither HOME nor what would stand for it is set.
    #[error("no {what} is known: {} is not set", names::HOME)]
    NoHome {
        /// Data directory, cache directory.
        what: &'static str,
    },
    /// The folder of the process is gone, so that a relative path means nothing.
    #[error("`{}` cannot be made absolute", path.display())]
    Relative {
        /// The path.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

impl Paths {
    /// The folders: options first, then the environment, then the platform's. Sandboxes of root run under host uids
    /// without privileges that must reach homes and assets, so root's are not under /root.
    ///
    /// # Errors
    /// Where HOME would be needed and is unset, or a path cannot be made absolute.
    pub fn resolve(
        data: Option<&Path>,
        cache: Option<&Path>,
        environment: &Environment,
        user: User,
    ) -> Result<Self, PathsError> {
        let folder = |given: Option<&Path>, variable, for_root: &str, xdg, under_home: &str, what| {
            let set = given
                .map(Path::to_owned)
                .or_else(|| environment.get(variable).map(PathBuf::from));
            let path = match (set, user) {
                (Some(path), _) => path,
                (None, User::Root) => for_root.into(),
                (None, User::Ordinary) => match (absolute(environment, xdg), environment.get(names::HOME)) {
                    (Some(base), _) => base.join("dressage"),
                    (None, Some(home)) => Path::new(home).join(under_home).join("dressage"),
                    (None, None) => return Err(PathsError::NoHome { what }),
                },
            };
            std::path::absolute(&path).map_err(|source| PathsError::Relative { path, source })
        };
        Ok(Self {
            data: folder(
                data,
                names::DATA_DIR,
                "/var/lib/dressage",
                names::XDG_DATA_HOME,
                ".local/share",
                "data directory",
            )?,
            cache: folder(
                cache,
                names::CACHE_DIR,
                "/var/cache/dressage",
                names::XDG_CACHE_HOME,
                ".cache",
                "cache directory",
            )?,
        })
    }
}

/// Where the configuration file is looked for if nobody names one; `None` where no home is known.
#[must_use]
pub fn default_config(environment: &Environment) -> Option<PathBuf> {
    let base = absolute(environment, names::XDG_CONFIG_HOME).or_else(|| {
        environment
            .get(names::HOME)
            .map(|home| Path::new(home).join(".config"))
    })?;
    Some(base.join("dressage/config.toml"))
}

/// An XDG folder; by its specification a relative one is to be ignored.
fn absolute(environment: &Environment, name: &str) -> Option<PathBuf> {
    environment
        .get(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

/// Who runs the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// uid 0.
    Root,
    /// Anybody else.
    Ordinary,
}

impl User {
    /// Who runs this process, by its effective uid.
    #[must_use]
    pub fn current() -> Self {
        if nix::unistd::geteuid().is_root() {
            Self::Root
        } else {
            Self::Ordinary
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_go_over_the_environment_and_that_over_the_platform() {
        let environment = Environment::of(
            &[
                ("DRESSAGE_DATA_DIR", "/env/data"),
                ("HOME", "/home/a"),
                ("XDG_CACHE_HOME", "relative"),
            ],
            &[],
        );
        let given = Paths::resolve(Some(Path::new("/given")), None, &environment, User::Ordinary).unwrap();
        assert_eq!(given.data, Path::new("/given"));
        assert_eq!(given.cache, Path::new("/home/a/.cache/dressage"));
        let root = Paths::resolve(None, None, &environment, User::Root).unwrap();
        assert_eq!(root.data, Path::new("/env/data"));
        assert_eq!(root.cache, Path::new("/var/cache/dressage"));
    }

    #[test]
    fn a_user_without_home_is_told_so() {
        let error = Paths::resolve(None, None, &Environment::of(&[], &[]), User::Ordinary).unwrap_err();
        assert_eq!(error.to_string(), "no data directory is known: HOME is not set");
    }
}
