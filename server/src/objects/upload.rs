use super::place::ObjectPlace;
use crate::error::Failure;
use bytes::{Bytes, BytesMut};
use object_store::{Error, MultipartUpload, ObjectStoreExt as _};
use std::io::{self, Write};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

/// Bytes of a part. Stores take ten thousand parts, so that an object can have 160 GB; some want all but the last of one
/// size.
const PART_BYTES: usize = 16 << 20;

/// Parts that are sent at the same time.
const UNDER_WAY: usize = 2;

/// Takes the bytes of an object, from a thread that may block.
#[derive(Debug)]
pub struct ObjectWriter {
    held: BytesMut,
    parts: mpsc::Sender<Bytes>,
}

/// An object that is being written.
#[derive(Debug)]
pub struct Upload {
    /// Given the last part when all is written; dropped where it is not to be.
    whole: oneshot::Sender<Bytes>,
    task: JoinHandle<Result<(), Error>>,
}

/// How what is to be sent came to its end.
enum End {
    Whole,
    Abandoned,
}

impl Upload {
    /// Begins to write an object.
    ///
    /// # Errors
    /// A store that is not reached, or does not let it be written.
    pub async fn begin(place: &ObjectPlace) -> Result<(ObjectWriter, Self), Failure> {
        let upload = place.store.put_multipart(&place.path).await;
        let upload = upload.map_err(|error| place.write_failure(&error))?;
        let (parts, waiting) = mpsc::channel(1);
        let (whole, last) = oneshot::channel();
        let task = tokio::spawn(run(upload, waiting, last));
        let writer = ObjectWriter {
            held: BytesMut::new(),
            parts,
        };
        Ok((writer, Self { whole, task }))
    }

    /// Ends the object, which is there then.
    ///
    /// # Errors
    /// A part that could not be sent; then there is none.
    pub async fn keep(self, writer: ObjectWriter) -> Result<(), Error> {
        let ObjectWriter { held, parts } = writer;
        drop(parts);
        // Where nobody takes it the upload has failed, and says why.
        let _ = self.whole.send(held.freeze());
        self.task.await?
    }

    /// Leaves nothing of the object. Gives the error that it failed by before, or that kept parts of it in the store.
    pub async fn abandon(self) -> Option<Error> {
        drop(self.whole);
        match self.task.await {
            Ok(done) => done.err(),
            Err(error) => Some(error.into()),
        }
    }
}

async fn run(
    mut upload: Box<dyn MultipartUpload>,
    parts: mpsc::Receiver<Bytes>,
    last: oneshot::Receiver<Bytes>,
) -> Result<(), Error> {
    let done = match send(upload.as_mut(), parts, last).await {
        Ok(End::Abandoned) => return upload.abort().await,
        Ok(End::Whole) => upload.complete().await.map(drop),
        Err(error) => Err(error),
    };
    if done.is_err() {
        // That it is not whole is what is to be told.
        let _ = upload.abort().await;
    }
    done
}

async fn send(
    upload: &mut dyn MultipartUpload,
    mut parts: mpsc::Receiver<Bytes>,
    mut last: oneshot::Receiver<Bytes>,
) -> Result<End, Error> {
    let mut under_way = JoinSet::new();
    let mut sent = 0_usize;
    let last = loop {
        tokio::select! {
            biased;
            last = &mut last => break last,
            Some(done) = under_way.join_next() => done??,
            part = parts.recv(), if under_way.len() < UNDER_WAY => match part {
                Some(part) => {
                    under_way.spawn(upload.put_part(part.into()));
                    sent += 1;
                }
                None => break last.await,
            },
        }
    };
    let Ok(last) = last else {
        under_way.shutdown().await;
        return Ok(End::Abandoned);
    };
    while let Some(part) = parts.recv().await {
        under_way.spawn(upload.put_part(part.into()));
        sent += 1;
    }
    if sent == 0 || !last.is_empty() {
        under_way.spawn(upload.put_part(last.into()));
    }
    while let Some(done) = under_way.join_next().await {
        done??;
    }
    Ok(End::Whole)
}

impl Write for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PART_BYTES - self.held.len());
        self.held
            .extend_from_slice(bytes.get(..count).unwrap_or_default());
        if self.held.len() == PART_BYTES {
            let part = self.held.split().freeze();
            let sent = self.parts.blocking_send(part);
            sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Ok(count)
    }

    /// A part goes when it is full.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
