//! What the programs of this folder share.

use dressage_sandbox::lease::Owner;
use dressage_sandbox::{BackendConfig, Command, OutputSink, Providers};
use dressage_wire::event::OutputStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Where output goes that nobody reads.
pub struct Nowhere;

impl OutputSink for Nowhere {
    fn write(&self, _: OutputStream, _: &[u8]) {}
}

/// The middle one, in milliseconds.
pub fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

/// A program that does nothing.
pub fn nothing() -> Command {
    Command {
        argv: vec!["true".into()],
        ..Command::default()
    }
}

/// For a data directory in `folder`. Needs DRESSAGE_TAP_BINARY, the static `dressage-tap`.
pub fn config(folder: &Path, providers: Providers) -> Result<BackendConfig, Failure> {
    let tap_binary = std::env::var_os("DRESSAGE_TAP_BINARY").ok_or("DRESSAGE_TAP_BINARY is not set")?;
    // Programs in sandboxes are other users.
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    Ok(BackendConfig {
        data_dir: folder.join("data"),
        cache_dir: folder.join("cache"),
        tap_binary: tap_binary.into(),
        bubblewrap: None,
        ripgrep: None,
        owner: Arc::new(Owner::acquire(&folder.join("data"))?),
        providers,
    })
}
