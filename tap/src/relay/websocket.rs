use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The most of a frame that is sent at once.
const SENT_BYTES: usize = 64 << 10;

/// What is read at once.
const READ_BYTES: usize = 64 << 10;

/// Answers to pings that wait to be sent; beyond it pings are not answered.
const WAITING_BYTES: usize = 2 * SENT_BYTES;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The server's side of a WebSocket (RFC 6455) as a stream of bytes: messages have no meaning beyond their bytes. A frame that a
/// client must not send is an error, after which nothing more is read.
pub(crate) struct WebSocket {
    connection: TcpStream,
    /// What was received, from `taken` on.
    received: Vec<u8>,
    taken: usize,
    /// The data frame that is being read.
    left: u64,
    mask: [u8; 4],
    /// Bytes of the payload that were unmasked, for the place in the mask.
    unmasked: usize,
    over: bool,
    /// Whole frames, from `sent` on.
    waiting: Vec<u8>,
    sent: usize,
}

/// The beginning of a frame from a client.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    operation: u8,
    length: u64,
    mask: [u8; 4],
    /// Bytes of the head itself.
    size: usize,
}

/// Reads the head at the beginning of `bytes`; `None` if it is not all there.
fn head(bytes: &[u8]) -> io::Result<Option<Head>> {
    let &[first, second, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    let (operation, length) = (first & 0x0f, second & 0x7f);
    let control = operation >= CLOSE;
    let well_formed = first & 0x70 == 0
        && second & 0x80 != 0
        && if control {
            first & 0x80 != 0 && length <= 125 && operation <= PONG
        } else {
            operation <= BINARY && operation != TEXT
        };
    if !well_formed {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let extended = match length {
        127 => 8,
        126 => 2,
        _ => 0,
    };
    let Some((number, rest)) = rest.split_at_checked(extended) else {
        return Ok(None);
    };
    let Some(mask) = rest.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = match extended {
        0 => u64::from(length),
        _ => number
            .iter()
            .fold(0, |length, byte| length << 8 | u64::from(*byte)),
    };
    if length >> 63 != 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Some(Head {
        operation,
        length,
        mask: *mask,
        size: 6 + extended,
    }))
}

impl WebSocket {
    /// Over a connection whose handshake is over, after which `received` came.
    pub(crate) fn new(connection: TcpStream, received: Vec<u8>) -> Self {
        Self {
            connection,
            received,
            taken: 0,
            left: 0,
            mask: [0; 4],
            unmasked: 0,
            over: false,
            waiting: Vec::new(),
            sent: 0,
        }
    }

    /// A frame to be sent.
    fn queue(&mut self, operation: u8, payload: &[u8]) {
        self.waiting.push(0x80 | operation);
        match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
            (Ok(length @ 0..=125), _) => self.waiting.push(length),
            (_, Ok(length)) => {
                self.waiting.push(126);
                self.waiting.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                self.waiting.push(127);
                self.waiting
                    .extend_from_slice(&(payload.len() as u64).to_be_bytes());
            }
        }
        self.waiting.extend_from_slice(payload);
    }

    /// Sends what waits.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(bytes @ [_, ..]) = self.waiting.get(self.sent..) {
            let sent = ready!(Pin::new(&mut self.connection).poll_write(context, bytes))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        self.waiting.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Gives bytes of the data frame that is being read, of those that are there.
    fn give(&mut self, into: &mut ReadBuf<'_>) {
        let there = self.received.get(self.taken..).unwrap_or_default();
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let count = there.len().min(left).min(into.remaining());
        let given = into.initialize_unfilled_to(count);
        let mask = self.mask.iter().cycle().skip(self.unmasked % 4);
        for ((to, from), mask) in given.iter_mut().zip(there).zip(mask) {
            *to = from ^ mask;
        }
        into.advance(count);
        self.unmasked = (self.unmasked + count) % 4;
        self.taken += count;
        self.left -= count as u64;
    }

    /// Takes a head, and a control frame whole. False where more has to be received first.
    fn take_frame(&mut self) -> io::Result<bool> {
        let there = self.received.get(self.taken..).unwrap_or_default();
        let Some(head) = head(there)? else {
            return Ok(false);
        };
        if head.operation < CLOSE {
            self.taken += head.size;
            (self.left, self.mask, self.unmasked) = (head.length, head.mask, 0);
            return Ok(true);
        }
        // At most 125 bytes.
        let length = head.length as usize;
        let Some(payload) = there.get(head.size..head.size + length) else {
            return Ok(false);
        };
        let payload: Vec<u8> = payload
            .iter()
            .zip(head.mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        self.taken += head.size + length;
        match head.operation {
            CLOSE => self.over = true,
            PING if self.waiting.len() < WAITING_BYTES => self.queue(PONG, &payload),
            _ => {}
        }
        Ok(true)
    }
}

impl AsyncRead for WebSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.over || into.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if this.left > 0 && this.taken < this.received.len() {
                this.give(into);
                return Poll::Ready(Ok(()));
            }
            if this.left == 0 && this.take_frame()? {
                // Pongs go out as well as can be; what does not go now goes with what is written next.
                let _ = this.poll_send(context)?;
                continue;
            }
            this.received.drain(..this.taken);
            this.taken = 0;
            let before = this.received.len();
            this.received.resize(before + READ_BYTES, 0);
            let mut buffer = ReadBuf::new(this.received.get_mut(before..).unwrap_or_default());
            let polled = Pin::new(&mut this.connection).poll_read(context, &mut buffer);
            let count = buffer.filled().len();
            this.received.truncate(before + count);
            ready!(polled)?;
            if count == 0 {
                // Cut, without the frame that closes.
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

impl AsyncWrite for WebSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(context))?;
        let count = bytes.len().min(SENT_BYTES);
        self.queue(BINARY, bytes.get(..count).unwrap_or_default());
        // What does not go now goes before what is written next, or with a flush.
        if let Poll::Ready(Err(error)) = self.poll_send(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.over {
            self.over = true;
            self.queue(CLOSE, &[]);
        }
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, WebSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        (
            client,
            WebSocket::new(listener.accept().await.unwrap().0, Vec::new()),
        )
    }

    /// A frame as a client sends it.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [0x37, 0xfa, 0x21, 0x3d];
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..=125 => frame.push(0x80 | length as u8),
            length @ 126..=65535 => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(mask);
        frame.extend(
            payload
                .iter()
                .zip(mask.iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        frame
    }

    /// The example of RFC 6455, 5.7.
    #[tokio::test]
    async fn the_example_of_the_standard_is_read() {
        let (mut client, mut socket) = pair().await;
        client
            .write_all(&[0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58])
            .await
            .unwrap();
        let mut read = [0; 5];
        socket.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"Hello");
        socket.write_all(b"Hello").await.unwrap();
        let mut answered = [0; 7];
        client.read_exact(&mut answered).await.unwrap();
        assert_eq!(answered, [0x82, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
    }

    #[tokio::test]
    async fn any_split_of_frames_reads_the_same() {
        let long: Vec<u8> = (0..70_000u32).map(|number| (number % 251) as u8).collect();
        let mut sent = frame(0x02, b"one ");
        sent.extend(frame(0x89, b"are you there"));
        sent.extend(frame(0x80, b"message"));
        sent.extend(frame(0x82, b""));
        sent.extend(frame(0x82, &long[..300]));
        let mut all = b"one message".to_vec();
        all.extend(&long[..300]);
        for size in [1, 2, 3, 5, 7, 11, 64, 350] {
            let (mut client, mut socket) = pair().await;
            let pieces = sent.clone();
            let writing = tokio::spawn(async move {
                for piece in pieces.chunks(size) {
                    client.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
                client.write_all(&frame(0x88, &[])).await.unwrap();
                client
            });
            let mut read = Vec::new();
            socket.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, all, "in pieces of {size}");
            let mut client = writing.await.unwrap();
            let mut pong = [0; 15];
            client.read_exact(&mut pong).await.unwrap();
            assert_eq!(&pong, b"\x8a\x0dare you there");
        }
        // Long ones, and what is written is as long.
        let (mut client, mut socket) = pair().await;
        let echoing = tokio::spawn(async move {
            let mut read = vec![0; 70_000];
            socket.read_exact(&mut read).await.unwrap();
            socket.write_all(&read).await.unwrap();
            socket.flush().await.unwrap();
            socket.shutdown().await.unwrap();
        });
        client.write_all(&frame(0x82, &long)).await.unwrap();
        let mut answered = Vec::new();
        client.read_to_end(&mut answered).await.unwrap();
        echoing.await.unwrap();
        let mut expected = Vec::new();
        for piece in long.chunks(SENT_BYTES) {
            expected.push(0x82);
            if piece.len() > 65535 {
                expected.push(127);
                expected.extend((piece.len() as u64).to_be_bytes());
            } else {
                expected.push(126);
                expected.extend((piece.len() as u16).to_be_bytes());
            }
            expected.extend(piece);
        }
        expected.extend([0x88, 0x00]);
        assert_eq!(answered, expected);
    }

    #[tokio::test]
    async fn what_a_client_must_not_send_is_an_error_and_a_cut_is_no_end() {
        for bytes in [
            // Not masked, reserved bits, text, an unknown operation, a long ping, a ping in pieces, an absurd length.
            &[0x82u8, 0x01, 0x00][..],
            &[0xc2, 0x81, 0, 0, 0, 0, 0],
            &[0x81, 0x81, 0, 0, 0, 0, 0],
            &[0x83, 0x81, 0, 0, 0, 0, 0],
            &[0x8b, 0x80, 0, 0, 0, 0],
            &[0x89, 0xfe, 0, 126, 0, 0, 0, 0],
            &[0x09, 0x80, 0, 0, 0, 0],
            &[0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let (mut client, mut socket) = pair().await;
            client.write_all(bytes).await.unwrap();
            let error = socket.read(&mut [0; 9]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
        let (mut client, mut socket) = pair().await;
        client.write_all(&frame(0x82, b"whole")[..8]).await.unwrap();
        drop(client);
        let mut read = Vec::new();
        let error = socket.read_to_end(&mut read).await.unwrap_err();
        assert_eq!((error.kind(), read.len()), (io::ErrorKind::UnexpectedEof, 2));
    }
}
