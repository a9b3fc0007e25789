use super::children::Children;
use super::files::Workers;
use super::program::{self, Surroundings, ToProgram};
use super::replies::Replies;
use crate::stdio::{Reader, Writer};
use bytes::{Bytes, BytesMut};
use dressage_wire::control::{Frame, Hello, PROTOCOL, Reply, Request};
use std::collections::HashMap;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// The connection to the host.
pub(super) struct Connection {
    reader: Reader,
    writer: Writer,
}

impl Connection {
    pub(super) fn over(socket: UnixStream) -> Self {
        let (reader, writer) = socket.into_split();
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
        }
    }

    /// Programs that are started have others.
    pub(super) fn over_stdio() -> io::Result<Self> {
        let (reader, writer) = crate::stdio::take()?;
        Ok(Self { reader, writer })
    }
}

/// Does what the host asks until its end of the connection closes.
pub(super) async fn serve(
    Connection { reader, writer }: Connection,
    files: Workers,
    children: &Children,
    relay_address: Option<String>,
) -> io::Result<()> {
    let (replies, waiting) = Replies::new();
    tokio::spawn(write(writer, waiting));
    replies
        .send(
            0,
            Reply::Hello(Hello {
                protocol: PROTOCOL,
                relay_address,
            }),
        )
        .await;
    let surroundings = Surroundings {
        children: children.clone(),
        replies,
    };
    Session {
        files,
        surroundings,
        programs: HashMap::new(),
    }
    .run(reader)
    .await
}

async fn write(mut writer: Writer, mut waiting: mpsc::Receiver<Bytes>) {
    while let Some(frame) = waiting.recv().await {
        if writer.write_all(&frame).await.is_err() {
            return;
        }
    }
}

struct Session {
    files: Workers,
    surroundings: Surroundings,
    programs: HashMap<u64, mpsc::UnboundedSender<ToProgram>>,
}

impl Session {
    async fn run(mut self, mut reader: Reader) -> io::Result<()> {
        let mut buffer = BytesMut::new();
        loop {
            while let Some(frame) = Frame::<Request>::decode(&mut buffer).map_err(io::Error::other)? {
                self.handle(frame);
            }
            if reader.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Hands a request to whoever does it; never waits, so that no request delays another.
    fn handle(&mut self, Frame { id, body }: Frame<Request>) {
        match body {
            Request::Start(start) => {
                self.programs.retain(|_, program| !program.is_closed());
                let (to_program, from_host) = mpsc::unbounded_channel();
                self.programs.insert(id, to_program);
                tokio::spawn(program::run(id, start, from_host, self.surroundings.clone()));
            }
            Request::Input(bytes) => self.tell(id, ToProgram::Input(bytes)),
            Request::Kill if self.programs.contains_key(&id) => self.tell(id, ToProgram::Kill),
            request => self.files.hand_over(id, request, &self.surroundings.replies),
        }
    }

    fn tell(&self, id: u64, message: ToProgram) {
        if let Some(program) = self.programs.get(&id) {
            // A program that has ended listens no more, which is as good.
            let _ = program.send(message);
        }
    }
}
