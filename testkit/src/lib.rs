//! Stand-ins for what Dressage talks to: a model endpoint that follows a script, an agent that follows its model, faults
//! made on purpose, and the upstream, load generator and byte copy that speed is measured with.
//!
//! Nothing here knows of rollouts or sandboxes. The model endpoint is also what `dressage demo` runs against.

/// The scripted model endpoint: vLLM-shaped and honest about tokens.
pub mod model;

/// A port where nobody listens.
pub mod closed;

/// Faults, injected by call.
pub mod fault;

/// The scripted agent: a tiny coding agent that does what its model says, or misbehaves on purpose.
pub mod agent;

/// Measuring speed: an upstream that only copies, a load generator, a byte-copy proxy and the driver of them all.
pub mod bench;
