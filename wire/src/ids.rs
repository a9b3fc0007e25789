use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// Milliseconds since the Unix epoch and a counter in 16 bits: the start of the id made last.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A UUIDv7 that sorts behind all that this process made before.
///
/// Its random part comes from the standard library's hash keys, not from the uuid crate's generator: that one looks for
/// `getrandom` by name at run time, finds nothing in a static program, and then wants a `/dev` that a bare root has not.
fn next_uuid() -> Uuid {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX) << 16;
    let after = |last: u64| now.max(last.wrapping_add(1));
    // The closure returns a value always, so this never fails.
    let (Ok(last) | Err(last)) =
        LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(after(last)));
    let start = after(last);
    let random = RandomState::new().build_hasher().finish();
    let mut bytes = [0; 10];
    for (to, from) in bytes
        .iter_mut()
        .zip(place(start as u16, random).to_be_bytes().into_iter().skip(6))
    {
        *to = from;
    }
    uuid::Builder::from_unix_timestamp_millis(start >> 16, &bytes).into_uuid()
}

/// The 80 bits behind a UUIDv7's time, in which version and variant take bits 76 to 79 and 62 to 63: the counter first.
fn place(counter: u16, random: u64) -> u128 {
    let counter = u128::from(counter);
    ((counter >> 4) << 64) | ((counter & 0xf) << 58) | u128::from(random >> 6)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id; ids made later sort later.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "a default id would hide that each one is new")]
            pub fn new() -> Self {
                Self(next_uuid())
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
    /// The n rollouts that one request asked for.
    GroupId
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_made_later_sort_later_also_within_a_millisecond() {
        let ids: Vec<CallId> = (0..100_000).map(|_| CallId::new()).collect();
        assert!(ids.windows(2).all(|two| two[0] < two[1]));
    }

    #[test]
    fn an_id_is_a_uuid_of_version_7_with_the_time_in_it() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let id = RolloutId::new().as_uuid();
        assert_eq!(
            (id.get_version_num(), id.get_variant()),
            (7, uuid::Variant::RFC4122)
        );
        let (seconds, nanoseconds) = id.get_timestamp().unwrap().to_unix();
        let made = seconds * 1000 + u64::from(nanoseconds) / 1_000_000;
        assert!((before..before + 60_000).contains(&made), "{before} {made}");
    }

    #[test]
    fn ids_of_one_moment_differ_in_their_random_part() {
        let random = |id: CallId| id.as_uuid().as_u128() & ((1 << 58) - 1);
        assert_ne!(random(CallId::new()), random(CallId::new()));
    }
}
