use crate::world::{World, entries, is_root, names, spec, tap_binary};
use dressage_sandbox::{SandboxError, by_name, registry};
use std::path::Path;
use std::process::Command;

#[test]
fn the_table_of_backends_is_the_folder_of_backends() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backends");
    let files: Vec<String> = names(&folder)
        .into_iter()
        .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
        .collect();
    let mut table: Vec<&str> = registry().iter().map(|entry| entry.name).collect();
    table.sort_unstable();
    assert_eq!(table, files);
}

#[test]
fn an_unknown_backend_is_named() {
    let error = by_name("locl").err().unwrap();
    assert_eq!(error.to_string(), "no sandbox backend is named `locl`");
    assert!(matches!(error, SandboxError::UnknownBackend { .. }));
    assert!(error.hint().unwrap().contains("doctor"));
}

#[test]
fn every_backend_reports_what_it_can_do_here() {
    let world = World::new();
    for entry in entries() {
        let report = (entry.probe)(&world.config);
        assert_eq!(report.problem, None, "{}", entry.name);
        let fact = |name: &str| {
            report
                .facts
                .iter()
                .find(|fact| fact.name == name)
                .map(|fact| fact.value.clone())
        };
        assert!(fact("limits").is_some(), "{report:?}");
        if is_root() {
            assert_ne!(
                fact("control groups").as_deref(),
                Some("none that this user may use")
            );
        }
    }
}

#[tokio::test]
async fn an_image_is_refused_where_there_are_none() {
    let world = World::new();
    for backend in world
        .backends()
        .iter()
        .filter(|backend| backend.name() != "docker")
    {
        let mut spec = spec();
        spec.image = Some("debian".into());
        assert!(matches!(
            backend.create(spec).await.err().unwrap(),
            SandboxError::Unsupported { .. }
        ));
        let mut built = crate::world::spec();
        built.dockerfile = Some("FROM debian".into());
        let mut as_root = crate::world::spec();
        as_root.user = Some("root".into());
        for spec in [built, as_root] {
            let error = backend.create(spec).await.err().unwrap();
            assert!(matches!(error, SandboxError::Unsupported { .. }), "{error}");
        }
    }
}

#[test]
fn the_process_backend_gives_no_home_that_is_asked_for() {
    let world = World::new();
    assert!(world.backend("local").gives_home("/home/user"));
    assert!(!world.backend("process").gives_home("/home/user"));
}

/// Everything again as an ordinary user, where this is root.
#[test]
fn as_an_ordinary_user() {
    if !is_root() {
        return;
    }
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--test-threads=2",
            "--skip=thirty_seconds",
            "--skip=a_million_files",
            "--skip=as_an_ordinary_user",
        ])
        .env("DRESSAGE_TAP_BINARY", tap_binary())
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "as user 65534:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
