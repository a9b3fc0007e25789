use crate::codec::CodecError;
use std::io::Read;

/// Stored as it is.
const PLAIN: u8 = 0;
/// A zstd frame with a checksum.
const ZSTD: u8 = 1;
/// Shorter than this, a frame's own bytes outweigh what it saves.
const WORTH_PACKING_BYTES: usize = 64;
/// More than a call may be; what says it is larger is damaged.
const UNPACKED_LIMIT_BYTES: u64 = 1 << 31;

/// Packs bytes, one after the other with the same buffers.
pub(crate) struct Packer(Option<zstd::bulk::Compressor<'static>>);

impl Packer {
    pub(crate) fn new() -> Self {
        let compressor =
            zstd::bulk::Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL).and_then(|mut compressor| {
                compressor.include_checksum(true)?;
                Ok(compressor)
            });
        // Without a compressor (no memory for one) bytes are stored as they are.
        Self(compressor.ok())
    }

    pub(crate) fn pack(&mut self, bytes: &[u8]) -> Vec<u8> {
        if bytes.len() >= WORTH_PACKING_BYTES
            && let Some(frame) = self
                .0
                .as_mut()
                .and_then(|compressor| compressor.compress(bytes).ok())
            && frame.len() < bytes.len()
        {
            return [&[ZSTD], frame.as_slice()].concat();
        }
        [&[PLAIN], bytes].concat()
    }
}

/// The bytes that were packed.
pub(crate) fn unpack(packed: &[u8]) -> Result<Vec<u8>, CodecError> {
    match packed.split_first() {
        Some((&PLAIN, bytes)) => Ok(bytes.to_vec()),
        Some((&ZSTD, frame)) => {
            let mut bytes = Vec::new();
            zstd::stream::read::Decoder::new(frame)
                .and_then(|decoder| decoder.take(UNPACKED_LIMIT_BYTES).read_to_end(&mut bytes))
                .map_err(CodecError::Frame)?;
            Ok(bytes)
        }
        Some((version, _)) => Err(CodecError::Version { version: *version }),
        None => Err(CodecError::Truncated),
    }
}
