//! What the host and `dressage-tap init` inside a sandbox say to each other.
//!
//! A frame is a length (4 bytes, little endian, of what follows), a kind (1 byte), the number of the request that it
//! belongs to (8 bytes, little endian) and a body: JSON for what has a structure, raw bytes for content. The host picks the
//! numbers, each used once; init answers with the same number. What comes from inside is untrusted: a frame over
//! the limit, an unknown kind or a body that does not parse is an error, after which the connection is of no use.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of these frames; both sides come out of one build, so another version is an error.
pub const PROTOCOL: u32 = 1;

/// The longest frame either side accepts, in bytes.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// The longest piece of content that is put into one frame, in bytes.
pub const CHUNK_BYTES: usize = 128 << 10;

/// Pieces of a file that may be under way without an [`Reply::Acknowledged`].
pub const WRITE_WINDOW_CHUNKS: usize = 8;

const HEADER_BYTES: usize = 13;
const LENGTH_BYTES: usize = 4;

/// What the host asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Start a program. Its standard input follows as [`Request::Input`], ended by an empty one.
    Start(Start),
    /// A piece of standard input of the program that was started under the same number; empty: the end.
    Input(Bytes),
    /// End the program that was started under the same number, and its whole tree.
    Kill,
    /// Begin to write a file. The content follows as [`Request::Content`], ended by an empty one.
    Write(Write),
    /// A piece of the file begun under the same number; empty: the end.
    Content(Bytes),
    /// Read a regular file.
    Read(Read),
    /// List the regular files under a directory.
    List(List),
    /// Say whether something is at a path.
    Exists(Exists),
}

/// What init answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Init is ready. Sent once, under number 0, before anything else.
    Hello(Hello),
    /// The program runs.
    Started,
    /// Something it wrote to standard output.
    Stdout(Bytes),
    /// Something it wrote to standard error.
    Stderr(Bytes),
    /// The program ended, and all it wrote has been sent.
    Exited(Exited),
    /// A piece of the file that is written has arrived on its disk.
    Acknowledged,
    /// A piece of the file that is read.
    Content(Bytes),
    /// Some of the files that are listed.
    Files(Vec<FoundFile>),
    /// The request is done.
    Done(Done),
    /// The request failed.
    Failed(Failure),
}

/// A program to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory; made with its parents where it is missing.
    pub cwd: String,
    /// After this long its tree is ended and its exit is 124.
    pub timeout_ms: Option<u64>,
}

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Absolute path; missing parents are made.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
}

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// Absolute path.
    pub path: String,
    /// More bytes than this are a failure.
    pub limit_bytes: u64,
}

/// A directory to list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// Absolute path.
    pub path: String,
    /// Levels down; 1 is the directory's own files.
    pub max_depth: u32,
    /// Files after which listing stops.
    pub max_files: u64,
}

/// A path to look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exists {
    /// Absolute path.
    pub path: String,
}

/// What init says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of its build.
    pub protocol: u32,
    /// Where its relay listens.
    pub relay_address: Option<String>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    /// Exit code; 124 after a timeout, 128 + n after signal n.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its deadline passed.
    pub timed_out: bool,
}

/// A file that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundFile {
    /// Absolute path; invalid UTF-8 is replaced.
    pub path: String,
    /// Its length.
    pub size_bytes: u64,
}

/// The outcome of a request that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// For [`Request::Exists`]: whether something is there.
    #[serde(default)]
    pub found: bool,
    /// For [`Request::List`]: whether there was more.
    #[serde(default)]
    pub truncated: bool,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What the system said, lower case.
    pub message: String,
    /// The system's error number.
    pub errno: Option<i32>,
    /// For a file over the limit: its length in bytes.
    #[serde(default)]
    pub size_bytes: u64,
}

/// Kinds of failure that the host tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Nothing is at the path.
    NotFound,
    /// Something else than a regular file is; the message says what.
    NotRegular,
    /// The file is over the limit.
    TooLarge,
    /// Anything else.
    Other,
}

/// A request or a reply with its number.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame<T> {
    /// The request's number.
    pub id: u64,
    /// What is said.
    pub body: T,
}

/// The bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// It is too long.
    #[error("frame of {length} bytes, over the limit of {MAX_FRAME_BYTES}")]
    TooLong {
        /// What its length says.
        length: usize,
    },
    /// It is shorter than its own header.
    #[error("frame of {length} bytes, shorter than a header")]
    TooShort {
        /// What its length says.
        length: usize,
    },
    /// There is no such kind.
    #[error("frame of unknown kind {kind}")]
    UnknownKind {
        /// The kind.
        kind: u8,
    },
    /// Its body does not parse.
    #[error("frame of kind {kind} with a malformed body")]
    Malformed {
        /// The kind.
        kind: u8,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// One side's sayings, as kinds and bodies.
pub trait Message: Sized {
    /// Kind and body.
    ///
    /// # Errors
    /// [`FrameError::Malformed`] where the body cannot be written as JSON.
    fn encode_body(&self) -> Result<(u8, Bytes), FrameError>;

    /// The inverse of [`Message::encode_body`].
    ///
    /// # Errors
    /// [`FrameError::UnknownKind`] or [`FrameError::Malformed`].
    fn decode_body(kind: u8, body: Bytes) -> Result<Self, FrameError>;
}

impl Message for Request {
    fn encode_body(&self) -> Result<(u8, Bytes), FrameError> {
        Ok(match self {
            Self::Start(start) => (1, to_json(1, start)?),
            Self::Input(bytes) => (2, bytes.clone()),
            Self::Kill => (3, Bytes::new()),
            Self::Write(write) => (4, to_json(4, write)?),
            Self::Content(bytes) => (5, bytes.clone()),
            Self::Read(read) => (6, to_json(6, read)?),
            Self::List(list) => (7, to_json(7, list)?),
            Self::Exists(exists) => (8, to_json(8, exists)?),
        })
    }

    fn decode_body(kind: u8, body: Bytes) -> Result<Self, FrameError> {
        Ok(match kind {
            1 => Self::Start(from_json(kind, &body)?),
            2 => Self::Input(body),
            3 => Self::Kill,
            4 => Self::Write(from_json(kind, &body)?),
            5 => Self::Content(body),
            6 => Self::Read(from_json(kind, &body)?),
            7 => Self::List(from_json(kind, &body)?),
            8 => Self::Exists(from_json(kind, &body)?),
            _ => return Err(FrameError::UnknownKind { kind }),
        })
    }
}

impl Message for Reply {
    fn encode_body(&self) -> Result<(u8, Bytes), FrameError> {
        Ok(match self {
            Self::Hello(hello) => (65, to_json(65, hello)?),
            Self::Started => (66, Bytes::new()),
            Self::Stdout(bytes) => (67, bytes.clone()),
            Self::Stderr(bytes) => (68, bytes.clone()),
            Self::Exited(exited) => (69, to_json(69, exited)?),
            Self::Acknowledged => (70, Bytes::new()),
            Self::Content(bytes) => (71, bytes.clone()),
            Self::Files(files) => (72, to_json(72, files)?),
            Self::Done(done) => (73, to_json(73, done)?),
            Self::Failed(failure) => (74, to_json(74, failure)?),
        })
    }

    fn decode_body(kind: u8, body: Bytes) -> Result<Self, FrameError> {
        Ok(match kind {
            65 => Self::Hello(from_json(kind, &body)?),
            66 => Self::Started,
            67 => Self::Stdout(body),
            68 => Self::Stderr(body),
            69 => Self::Exited(from_json(kind, &body)?),
            70 => Self::Acknowledged,
            71 => Self::Content(body),
            72 => Self::Files(from_json(kind, &body)?),
            73 => Self::Done(from_json(kind, &body)?),
            74 => Self::Failed(from_json(kind, &body)?),
            _ => return Err(FrameError::UnknownKind { kind }),
        })
    }
}

fn to_json<T: Serialize>(kind: u8, value: &T) -> Result<Bytes, FrameError> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|source| FrameError::Malformed { kind, source })
}

fn from_json<T: DeserializeOwned>(kind: u8, body: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(body).map_err(|source| FrameError::Malformed { kind, source })
}

impl<T: Message> Frame<T> {
    /// The frame's bytes.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] for what the other side would refuse.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let (kind, body) = self.body.encode_body()?;
        let length = HEADER_BYTES - LENGTH_BYTES + body.len();
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong { length });
        }
        let mut out = BytesMut::with_capacity(LENGTH_BYTES + length);
        out.put_u32_le(u32::try_from(length).map_err(|_| FrameError::TooLong { length })?);
        out.put_u8(kind);
        out.put_u64_le(self.id);
        out.put_slice(&body);
        Ok(out.freeze())
    }

    /// Takes the first whole frame off `buffer`; `None` while there is none. Any split of the bytes gives the same
    /// frames.
    ///
    /// # Errors
    /// [`FrameError`]: the connection is of no further use.
    pub fn decode(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some(prefix) = buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong { length });
        }
        if length < HEADER_BYTES - LENGTH_BYTES {
            return Err(FrameError::TooShort { length });
        }
        if buffer.len() < LENGTH_BYTES + length {
            buffer.reserve(LENGTH_BYTES + length - buffer.len());
            return Ok(None);
        }
        let mut frame = buffer.split_to(LENGTH_BYTES + length);
        frame.advance(LENGTH_BYTES);
        let kind = frame.get_u8();
        let id = frame.get_u64_le();
        Ok(Some(Self {
            id,
            body: T::decode_body(kind, frame.freeze())?,
        }))
    }
}

#[cfg(test)]
mod tests;
