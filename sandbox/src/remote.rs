//! What backends at providers share: everything but the protocols that a provider speaks.

/// Calls over HTTP: deadlines, bounds, retries.
pub(crate) mod http;

/// A WebSocket into a sandbox, as the carrier of its relay.
pub(crate) mod carrier;

/// Trees of this machine, packed to be unpacked in sandboxes.
pub(crate) mod packed;

/// Shell scripts that keep the contract where nothing of ours runs inside.
pub(crate) mod scripts;

/// One sandbox, by its provider's protocols.
pub(crate) mod machine;

/// A sandbox by the contract.
pub(crate) mod sandbox;

/// Programs in it.
mod programs;

/// The user that agents are.
mod agent_user;

/// What is done before a sandbox is handed out.
mod boot;

/// The files of a sandbox, kept at its provider.
pub(crate) mod snapshot;

/// A backend over a provider: leases, creation, removal.
pub(crate) mod provider;
