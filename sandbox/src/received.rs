use bytes::{Buf, Bytes};
use tokio::io::ReadBuf;

/// Gives a reader as much as it takes of what was received, and says whether there was anything to give.
pub(crate) fn give(received: &mut Bytes, into: &mut ReadBuf<'_>) -> bool {
    if received.is_empty() {
        return false;
    }
    let count = received.len().min(into.remaining());
    into.put_slice(received.get(..count).unwrap_or_default());
    received.advance(count);
    true
}
