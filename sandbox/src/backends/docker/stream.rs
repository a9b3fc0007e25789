use super::engine::said;
use crate::OutputSink;
use crate::received::give;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bytes::{Bytes, BytesMut};
use dressage_wire::event::OutputStream;
use futures_util::{Stream, StreamExt};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// What is kept of what a program of ours writes to standard error.
const MAX_COMPLAINT_BYTES: usize = 2048;

/// What a program of ours in a container writes.
pub(super) type Attached = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// Standard output of a program in a container as a stream of bytes. Standard error is kept beside it.
pub(super) struct Output {
    attached: Attached,
    received: Bytes,
    complaints: Complaints,
}

/// What a program of ours wrote to standard error so far.
#[derive(Clone, Default)]
pub(super) struct Complaints(Arc<Mutex<Vec<u8>>>);

impl Output {
    pub(super) fn new(attached: Attached) -> Self {
        Self {
            attached,
            received: Bytes::new(),
            complaints: Complaints::default(),
        }
    }

    pub(super) fn complaints(&self) -> Complaints {
        self.complaints.clone()
    }

    /// Waits until a line is written to standard error, which is to be `ready`.
    pub(super) async fn ready(&mut self) -> io::Result<()> {
        let mut early = BytesMut::new();
        while !self.complaints.text().contains("ready") {
            match self.attached.next().await {
                Some(Ok(LogOutput::StdErr { message })) => self.complaints.add(&message),
                // Beside the other, and therefore not behind it.
                Some(Ok(LogOutput::StdOut { message })) => early.extend_from_slice(&message),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(io::Error::other(said(&error))),
                None => return Err(io::Error::other(self.complaints.text())),
            }
        }
        self.received = early.freeze();
        Ok(())
    }
}

impl Complaints {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_COMPLAINT_BYTES.saturating_sub(kept.len());
        kept.extend(bytes.iter().take(room));
    }

    pub(super) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

/// For scripts of ours: what they say beside the matter.
impl OutputSink for Complaints {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        if stream == OutputStream::Stderr {
            self.add(bytes);
        }
    }
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if give(&mut self.received, into) {
                return Poll::Ready(Ok(()));
            }
            match ready!(self.attached.as_mut().poll_next(context)) {
                Some(Ok(LogOutput::StdOut { message })) => self.received = message,
                Some(Ok(LogOutput::StdErr { message })) => self.complaints.add(&message),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
    }
}
