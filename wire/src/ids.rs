use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id; ids made later sort later.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "a default id would hide that each one is new")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// The UUID behind the id.
            #[must_use]
            pub fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

id! {
    /// One run of one task.
    RolloutId
}
id! {
    /// One exchange with a model.
    CallId
}
id! {
    /// One sandbox, whatever its backend calls it.
    SandboxId
}
id! {
    /// One process that owns sandboxes and rollouts, for as long as it holds its lock.
    OwnerId
}
id! {
    /// One data directory, whichever processes use it.
    InstallationId
}
