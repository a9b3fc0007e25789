//! What backends at providers share.

/// Calls over HTTP: deadlines, bounds, retries.
pub(crate) mod http;

/// A WebSocket into a sandbox, as the carrier of its relay.
pub(crate) mod carrier;

/// Trees of this machine, packed to be unpacked in sandboxes.
pub(crate) mod packed;

/// Shell scripts that keep the contract where nothing of ours runs inside.
pub(crate) mod scripts;
