/// The system gave no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gave no random numbers")]
pub struct NoRandomness;

/// Fills `bytes` from the system, which needs no `/dev` for that: there may be none in a sandbox.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), NoRandomness> {
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(bytes)
        .map_err(|_| NoRandomness)
}
