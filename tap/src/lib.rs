//! The gateway that agents' calls pass through, as a library; and what the program `dressage-tap` does inside
//! sandboxes.
//!
//! An [`Upstream`] is a model server that can be sent to. A [`Session`] is what the calls of one rollout have in common:
//! it serves connections and relay channels, and hands each call to its [`CallSink`] exactly once.

/// The command line of `dressage-tap`: `relay`, `init`, `proxy`.
pub mod cli;

/// A model server, as configured.
pub mod endpoint;

/// Which addresses may be connected to.
pub mod address;

/// From a host's name to its addresses.
mod resolve;

/// Random numbers.
mod random;

/// Connections: TCP, proxies, TLS.
mod connect;

/// Why an endpoint gave no reply.
mod failure;

/// The servers of an endpoint, and which one a request goes to.
mod replicas;

/// What holds for the calls of all rollouts to an endpoint: pauses, limits, the version of its weights.
#[cfg_attr(
    not(feature = "shared"),
    allow(dead_code, reason = "nobody pauses the one endpoint of the small program")
)]
pub mod control;

/// A model server that can be sent to.
pub mod upstream;

/// What an endpoint returns, found out by asking it.
pub mod probe;

/// What a rollout may spend.
pub mod budget;

/// Where calls go when they are over.
pub mod sink;

/// What the calls of one rollout have in common.
pub mod session;

/// The life of a call, on one page.
mod forward;

/// The body of a request, read within limits.
mod request;

/// A call that is not over, and how it comes to be recorded.
mod open_call;

/// What a request becomes for the endpoint, and what comes of sending it.
mod send;

/// What the tap itself says to agents.
mod answer;

/// The body of a reply to the agent.
mod reply;

/// An endpoint's stream on its way to the agent.
mod stream;

/// What agents ask beside calls of a model.
mod side;

/// The list of models.
mod models;

/// What lists of models say, in other forms than OpenAI's.
#[cfg(feature = "translated")]
mod cards;

/// How many tokens a request is.
#[cfg(feature = "translated")]
mod count;

/// One HTTP/1.1 connection.
mod connection;

/// Many connections over the one channel of a relay.
pub mod channel;

/// The way out of a sandbox that may reach some hosts by name.
#[cfg(feature = "shared")]
pub mod egress;

/// Connections through a listener.
pub mod gateway;

pub use budget::{Budgets, SpentBudget};
pub use channel::ChannelEnd;
pub use control::{CallLimits, EndpointControl};
pub use endpoint::{Endpoint, EndpointError, Prices};
pub use gateway::{AllowedHosts, Gateway, Health};
pub use random::NoRandomness;
pub use session::{Session, SessionConfig};
pub use sink::CallSink;
pub use upstream::Upstream;

/// The first process of a sandbox.
pub mod init;

/// Keeps what one program starts in one tree.
pub mod guard;

/// Ends with a program whatever that leaves behind.
pub mod leader;

/// Carries connections out of the sandbox over one channel.
pub mod relay;

/// Descriptors that were passed on by number.
mod inherited;

/// Standard input and output as streams.
mod stdio;

/// The tap as a program of its own, with a file of calls.
pub mod proxy;
