//! What remains of rollouts.
