//! What host and relay say to each other before the channel, where the host dials the relay.

/// Environment variable in which a relay that is dialled is given its secret.
pub const SECRET_VARIABLE: &str = "DRESSAGE_RELAY_SECRET";

/// Header of the WebSocket's request in which the host shows the secret. In lower case, as hyper wants names.
pub const SECRET_HEADER: &str = "x-dressage-relay";
