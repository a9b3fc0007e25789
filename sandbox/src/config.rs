use crate::lease::Owner;
use std::path::PathBuf;
use std::sync::Arc;

/// What a backend is given to work with.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// Where leases and homes are. As root, other users must be able to enter it: sandboxes run as such.
    pub data_dir: PathBuf,
    /// Where what can be made again is kept.
    pub cache_dir: PathBuf,
    /// The static program `dressage-tap`, readable by other users.
    pub tap_binary: PathBuf,
    /// The program `bwrap`; looked for in the usual places if unset.
    pub bubblewrap: Option<PathBuf>,
    /// A `rg` to give to sandboxes where the host has none in `/usr/bin`.
    pub ripgrep: Option<PathBuf>,
    /// In whose name sandboxes are made.
    pub owner: Arc<Owner>,
}
