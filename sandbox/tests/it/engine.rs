use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

/// The image that the project's script makes.
pub const IMAGE: &str = "dressage-test";

/// The address of an engine for tests: the one that `DRESSAGE_TEST_ENGINE` names, which has the image, or one that the first test
/// which asks starts. `None`, loudly, where this user can have none.
pub fn engine() -> Option<&'static str> {
    static ENGINE: OnceLock<Option<String>> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            if let Ok(engine) = std::env::var("DRESSAGE_TEST_ENGINE") {
                return Some(engine);
            }
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/docker-engine");
            let output = std::process::Command::new(script).output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code() {
                Some(0) => Some(format!(
                    "unix://{}",
                    String::from_utf8_lossy(&output.stdout).trim()
                )),
                // Not through the macro, whose output is shown for tests that fail alone.
                Some(3) => {
                    let text = format!("SKIPPED: everything with containers: {complaint}");
                    std::io::stderr().write_all(text.as_bytes()).unwrap();
                    None
                }
                _ => panic!("no engine for containers: {complaint}"),
            }
        })
        .as_deref()
}
