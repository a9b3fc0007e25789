//! `dressage serve` as its clients see it: the built program on a port of its own, spoken to with raw HTTP and sockets.

/// The program, started and ended.
mod server;

/// HTTP, as small as it can be.
mod client;

/// REST: asking for rollouts, and what comes of them.
mod rest;

/// Answers, held against the OpenAPI document.
mod schemas;

/// Events as they happen, and later.
mod events;

/// Sandboxes that are held for the caller.
mod hold;

/// Servers that end, and the next ones.
mod restart;

/// What a server that is killed leaves to the next one, on every backend.
mod leaks;

/// Sandboxes that are kept ready.
mod warm;

/// Sockets.
mod socket;

/// What OpenEnv clients see.
mod openenv;

/// Who may ask.
mod access;

/// MCP proper.
mod mcp;

/// The page, and what it asks for.
mod page;

/// Endpoints: pauses, versions of weights, probes.
mod endpoints;

/// Traces, as a collector gets them.
mod traces;

/// Clients that are slow, rude or gone.
mod odd;
