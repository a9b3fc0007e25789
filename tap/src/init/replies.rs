use bytes::Bytes;
use dressage_wire::control::{Frame, Reply};
use tokio::sync::mpsc;

/// Frames that may wait for the socket; when they do, whoever has the next one waits, and so do programs that write.
const MAX_WAITING: usize = 16;

/// Where replies go.
#[derive(Clone, Debug)]
pub(super) struct Replies(mpsc::Sender<Bytes>);

impl Replies {
    pub(super) fn new() -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self(sender), receiver)
    }

    /// Sends a reply. Once the host is gone replies go nowhere, and all of this is about to end.
    pub(super) async fn send(&self, id: u64, body: Reply) {
        if let Ok(bytes) = (Frame { id, body }).encode() {
            let _ = self.0.send(bytes).await;
        }
    }

    /// The same from a thread.
    pub(super) fn send_blocking(&self, id: u64, body: Reply) {
        if let Ok(bytes) = (Frame { id, body }).encode() {
            let _ = self.0.blocking_send(bytes);
        }
    }
}
