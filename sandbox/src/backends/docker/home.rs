use super::NAME;
use super::archive::fits;
use super::container::{Container, OURS, SEARCH_PATH};
use super::stream::Complaints;
use crate::SandboxError;
use crate::control::Control;
use bytes::Bytes;
use dressage_wire::control::Start;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

/// The usual home: where the home is elsewhere, a link is made from here.
pub(super) const USUAL_HOME: &str = "/home/user";

/// Makes directories anew, of which none is another's: `HOME PATH...`, every path below the home. What is in the way is
/// renamed to `NAME.aside-N`; no link is followed. Nothing else runs meanwhile.
const FRESH: &str = r#"
umask 022
home=$1; shift
chmod u+rwx "$home" || exit 1
for path in "$@"; do
  at=$home; rest=${path#"$home"/}
  while [ -n "$rest" ]; do
    at=$at/${rest%%/*}
    case $rest in */*) rest=${rest#*/} ;; *) rest= ;; esac
    if [ -L "$at" ] || { [ -e "$at" ] && { [ -z "$rest" ] || [ ! -d "$at" ]; }; }; then
      number=1
      while [ -e "$at.aside-$number" ] || [ -L "$at.aside-$number" ]; do number=$((number + 1)); done
      mv "$at" "$at.aside-$number" || exit 1
    fi
    if [ -d "$at" ]; then chmod u+rwx "$at" || [ -w "$at" ] || exit 1; else mkdir "$at" || exit 1; fi
  done
done
"#;

/// Folders that a home can be neither, nor be in, nor hold.
const TAKEN: [&str; 14] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/dev", "/sys", "/tmp",
    "/run", "/var",
];

/// Whether a sandbox can have its home there.
pub(super) fn may_be_home(home: &str) -> bool {
    let plain = home.starts_with('/')
        && fits(home)
        && !home.contains(['\0', ':', '\n'])
        && home
            .split('/')
            .skip(1)
            .all(|part| !part.is_empty() && part != "." && part != "..");
    plain
        && !TAKEN
            .iter()
            .chain([&OURS])
            .any(|taken| Path::new(home).starts_with(taken) || Path::new(taken).starts_with(home))
        && (home == USUAL_HOME
            || !Path::new(USUAL_HOME).starts_with(home) && !Path::new(home).starts_with(USUAL_HOME))
}

impl Container {
    /// Each of `fresh` as a path below the home.
    pub(super) fn below_home(&self, fresh: &[String]) -> Result<Vec<String>, SandboxError> {
        let home = Path::new(&self.spec.home);
        let below = |path: &String| {
            let below = Path::new(path)
                .strip_prefix(home)
                .or_else(|_| Path::new(path).strip_prefix(USUAL_HOME))
                .ok()?;
            let plain = below
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
            let there = below.components().next().is_some();
            (plain && there).then(|| home.join(below).to_string_lossy().into_owned())
        };
        fresh
            .iter()
            .map(|path| {
                below(path).ok_or_else(|| SandboxError::Unsupported {
                    backend: NAME,
                    what: format!("a fresh directory outside of the home, at `{path}`"),
                })
            })
            .collect()
    }

    /// Makes directories anew, before anything else runs.
    pub(super) async fn make_fresh(
        &self,
        control: &Arc<Control>,
        fresh: Vec<String>,
    ) -> Result<(), SandboxError> {
        let failed = |source| SandboxError::Create {
            step: "make directories anew".into(),
            source: Some(source),
        };
        let script = [
            "bash",
            "--noprofile",
            "--norc",
            "-c",
            FRESH,
            "dressage",
            &self.spec.home,
        ];
        let start = Start {
            argv: script
                .iter()
                .map(|word| (*word).to_owned())
                .chain(fresh)
                .collect(),
            env: BTreeMap::from([("PATH".to_owned(), SEARCH_PATH.to_owned())]),
            cwd: "/".to_owned(),
            timeout_ms: Some(u64::try_from(Duration::from_secs(60).as_millis()).unwrap_or(u64::MAX)),
        };
        let said = Arc::new(Complaints::default());
        let mut process = control.start(start, Bytes::new(), said.clone()).await?;
        let exit = crate::Process::wait(&mut process).await?;
        if exit.code == 0 {
            Ok(())
        } else {
            Err(failed(io::Error::other(said.text())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_neither_the_systems_nor_above_it() {
        for home in ["/home/user", "/root", "/workspace/agent", "/srv/home"] {
            assert!(may_be_home(home), "{home}");
        }
        for home in [
            "/",
            "",
            "home",
            "/etc",
            "/usr/x",
            "/opt",
            "/opt/dressage/x",
            "/tmp/x",
            "/home",
            "/home/user/x",
            "/a/../b",
        ] {
            assert!(!may_be_home(home), "{home}");
        }
    }
}
