//! The host's side of the conversation with `dressage-tap init`.
//!
//! What comes from inside is untrusted: answers to questions that were not asked are ignored, more than was asked for ends the
//! connection, and so does whatever is no frame. When the connection ends every open request fails with the reason.

/// Requests under way, and what answers do to them.
mod routes;

/// A running program.
mod program;

pub(crate) use program::ControlledProcess;

use crate::{FileList, OutputSink, SandboxError};
use bytes::{Bytes, BytesMut};
use dressage_wire::control::{
    CHUNK_BYTES, Done, Exists, Failure, FailureKind, Frame, FrameError, Hello, List, PROTOCOL, Read, Reply,
    Request, Start, WRITE_WINDOW_CHUNKS, Write,
};
use dressage_wire::ids::SandboxId;
use routes::{Route, Routes};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

const ENDED: &str = "its init has ended";

/// A connection to an init. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    sandbox: SandboxId,
    next: AtomicU64,
    routes: Arc<Routes>,
    // Not bounded: what waits here is held by its callers anyway (standard input), or bounded by acknowledgements.
    frames: mpsc::UnboundedSender<Bytes>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Control {
    /// Waits for init to say that it is ready.
    pub(crate) async fn connect(
        sandbox: SandboxId,
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(Self, Hello), SandboxError> {
        let gone = |reason: String| SandboxError::Gone { id: sandbox, reason };
        let mut buffer = BytesMut::new();
        let first = next_frame(&mut reader, &mut buffer).await.map_err(gone)?;
        let hello = match first.body {
            Reply::Hello(hello) if hello.protocol == PROTOCOL => hello,
            Reply::Hello(hello) => {
                return Err(gone(format!(
                    "its init speaks version {} of the protocol, not {PROTOCOL}: dressage-tap is of another build",
                    hello.protocol
                )));
            }
            _ => return Err(gone("its init did not introduce itself".into())),
        };
        let routes = Arc::new(Routes::default());
        let (frames, waiting) = mpsc::unbounded_channel();
        let tasks = [
            AbortOnDropHandle::new(tokio::spawn(read(reader, buffer, Arc::clone(&routes)))),
            AbortOnDropHandle::new(tokio::spawn(write(writer, waiting))),
        ];
        Ok((
            Self {
                sandbox,
                next: AtomicU64::new(1),
                routes,
                frames,
                _tasks: tasks,
            },
            hello,
        ))
    }

    /// Starts a program; answers when it runs.
    pub(crate) async fn start(
        self: &Arc<Self>,
        start: Start,
        stdin: Bytes,
        sink: Arc<dyn OutputSink>,
    ) -> Result<ControlledProcess, SandboxError> {
        let program = start.argv.first().cloned().unwrap_or_default();
        let deadline_ms = start.timeout_ms;
        let (started, is_started) = oneshot::channel();
        let (exited, has_exited) = oneshot::channel();
        let begun = std::time::Instant::now();
        let request = self.open(Route::Program {
            sink,
            started: Some(started),
            exited: Some(exited),
        })?;
        // Given up here, before it is known to run: then it is not to run.
        let unwanted = Abandon {
            control: Arc::clone(self),
            id: request,
            kill: true,
        };
        self.send(request, Request::Start(start), "start", &program)?;
        for piece in stdin.chunks(CHUNK_BYTES) {
            self.send(request, Request::Input(stdin.slice_ref(piece)), "start", &program)?;
        }
        self.send(request, Request::Input(Bytes::new()), "start", &program)?;
        match is_started.await {
            Ok(Ok(())) => {
                unwanted.forget();
                Ok(ControlledProcess::new(
                    Arc::clone(self),
                    request,
                    has_exited,
                    begun,
                    deadline_ms,
                ))
            }
            Ok(Err(failure)) => Err(self.failure("start", &program, failure)),
            Err(_) => Err(self.gone()),
        }
    }

    /// Ends a program that was started.
    fn kill(&self, request: u64) -> Result<(), SandboxError> {
        self.send(request, Request::Kill, "kill", "program")
    }

    /// Writes a file.
    pub(crate) async fn write_file(
        self: &Arc<Self>,
        write: Write,
        content: Bytes,
    ) -> Result<(), SandboxError> {
        let path = write.path.clone();
        let window = Arc::new(Semaphore::new(WRITE_WINDOW_CHUNKS));
        let (done, mut is_done) = oneshot::channel();
        let request = self.open(Route::Write {
            window: Arc::clone(&window),
            done: Some(done),
        })?;
        let abandoned = Abandon {
            control: Arc::clone(self),
            id: request,
            kill: true,
        };
        self.send(request, Request::Write(write), "write", &path)?;
        for piece in content.chunks(CHUNK_BYTES) {
            tokio::select! {
                biased;
                done = &mut is_done => return self.settle("write", &path, done).map(|_| ()),
                place = window.acquire() => match place {
                    Ok(place) => place.forget(),
                    Err(_) => return Err(self.gone()),
                },
            }
            self.send(
                request,
                Request::Content(content.slice_ref(piece)),
                "write",
                &path,
            )?;
        }
        self.send(request, Request::Content(Bytes::new()), "write", &path)?;
        let done = is_done.await;
        abandoned.forget();
        self.settle("write", &path, done).map(|_| ())
    }

    /// Reads a regular file.
    pub(crate) async fn read_file(self: &Arc<Self>, read: Read) -> Result<Bytes, SandboxError> {
        let (path, limit) = (read.path.clone(), read.limit_bytes);
        let (done, is_done) = oneshot::channel();
        let request = self.open(Route::Read {
            limit,
            buffer: BytesMut::new(),
            done: Some(done),
        })?;
        let _abandoned = Abandon {
            control: Arc::clone(self),
            id: request,
            kill: false,
        };
        self.send(request, Request::Read(read), "read", &path)?;
        match is_done.await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(failure)) if failure.kind == FailureKind::TooLarge => Err(SandboxError::TooLarge {
                path,
                size: failure.size_bytes,
                limit,
            }),
            Ok(Err(failure)) => Err(self.failure("read", &path, failure)),
            Err(_) => Err(self.gone()),
        }
    }

    /// Lists regular files.
    pub(crate) async fn list_files(self: &Arc<Self>, list: List) -> Result<FileList, SandboxError> {
        let path = list.path.clone();
        let (done, is_done) = oneshot::channel();
        let route = Route::List {
            limit: list.max_files,
            files: Vec::new(),
            done: Some(done),
        };
        let request = self.open(route)?;
        let _abandoned = Abandon {
            control: Arc::clone(self),
            id: request,
            kill: false,
        };
        self.send(request, Request::List(list), "list", &path)?;
        match is_done.await {
            Ok(Ok((mut files, truncated))) => {
                files.sort();
                Ok(FileList { files, truncated })
            }
            Ok(Err(failure)) => Err(self.failure("list", &path, failure)),
            Err(_) => Err(self.gone()),
        }
    }

    /// Whether something is at a path.
    pub(crate) async fn exists(self: &Arc<Self>, exists: Exists) -> Result<bool, SandboxError> {
        let path = exists.path.clone();
        let (done, is_done) = oneshot::channel();
        let request = self.open(Route::Simple { done: Some(done) })?;
        let _abandoned = Abandon {
            control: Arc::clone(self),
            id: request,
            kill: false,
        };
        self.send(request, Request::Exists(exists), "look at", &path)?;
        let done = is_done.await;
        self.settle("look at", &path, done).map(|done| done.found)
    }

    fn open(&self, route: Route) -> Result<u64, SandboxError> {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        if self.routes.open(request, route) {
            Ok(request)
        } else {
            Err(self.gone())
        }
    }

    fn send(
        &self,
        id: u64,
        body: Request,
        operation: &'static str,
        object: &str,
    ) -> Result<(), SandboxError> {
        let frame = Frame { id, body }.encode().map_err(|error| {
            let errno = matches!(error, FrameError::TooLong { .. }).then_some(libc::E2BIG);
            SandboxError::Operation {
                operation,
                object: shorten(object),
                message: error.to_string(),
                errno,
            }
        })?;
        self.frames.send(frame).map_err(|_| self.gone())
    }

    fn settle(
        &self,
        operation: &'static str,
        object: &str,
        done: Result<Result<Done, Failure>, oneshot::error::RecvError>,
    ) -> Result<Done, SandboxError> {
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(failure)) => Err(self.failure(operation, object, failure)),
            Err(_) => Err(self.gone()),
        }
    }

    fn failure(&self, operation: &'static str, object: &str, failure: Failure) -> SandboxError {
        let path = object.to_owned();
        match failure.kind {
            FailureKind::NotFound => SandboxError::NotFound { path },
            FailureKind::NotRegular => SandboxError::NotRegular {
                path,
                kind: shorten(&failure.message),
            },
            FailureKind::TooLarge | FailureKind::Other => SandboxError::Operation {
                operation,
                object: shorten(object),
                message: shorten(&failure.message),
                errno: failure.errno,
            },
        }
    }

    /// The error of every operation after the connection has ended.
    fn gone(&self) -> SandboxError {
        SandboxError::Gone {
            id: self.sandbox,
            reason: self.routes.end_reason(),
        }
    }

    /// Ends every open request, with a reason.
    pub(crate) fn close(&self, reason: &str) {
        self.routes.close(reason);
    }
}

/// Texts from inside, and programs that are whole scripts, are cut to what a message can hold.
fn shorten(text: &str) -> String {
    const MAX_CHARACTERS: usize = 200;
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Forgets a request whose caller has gone, and tells init where it would go on by itself.
struct Abandon {
    control: Arc<Control>,
    id: u64,
    kill: bool,
}

impl Abandon {
    fn forget(mut self) {
        self.kill = false;
        self.id = 0;
    }
}

impl Drop for Abandon {
    fn drop(&mut self) {
        if self.id != 0 && self.control.routes.remove(self.id) && self.kill {
            let _ = self.control.kill(self.id);
        }
    }
}

async fn next_frame(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Result<Frame<Reply>, String> {
    loop {
        match Frame::decode(buffer) {
            Ok(Some(frame)) => return Ok(frame),
            Ok(None) => {}
            Err(error) => return Err(format!("its init sent something else than frames: {error}")),
        }
        match reader.read_buf(buffer).await {
            Ok(0) => return Err(ENDED.into()),
            Ok(_) => {}
            // How the end looks when it had not read all that was sent to it.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Err(ENDED.into()),
            Err(error) => return Err(format!("the connection to its init broke: {error}")),
        }
    }
}

async fn read(mut reader: impl AsyncRead + Unpin, mut buffer: BytesMut, routes: Arc<Routes>) {
    let reason = loop {
        match next_frame(&mut reader, &mut buffer).await {
            Ok(frame) => {
                if let Err(reason) = routes.answer(frame) {
                    break reason.to_owned();
                }
            }
            Err(reason) => break reason,
        }
    };
    routes.close(&reason);
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut waiting: mpsc::UnboundedReceiver<Bytes>) {
    while let Some(frame) = waiting.recv().await {
        // The reader sees the end of the connection too, and says so.
        if writer.write_all(&frame).await.is_err() {
            return;
        }
    }
}
