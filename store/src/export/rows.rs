use super::columnar::ParquetRows;
use dressage_wire::export::{Shape, Source};
use serde::{Deserialize, Serialize};
use std::io::{self, BufWriter, Write};
use std::str::FromStr;

/// Level of zstd: what more costs in time it hardly saves in space on numbers in decimal.
const ZSTD_LEVEL: i32 = 3;

/// Bytes between what makes rows and what writes them.
const BUFFER_BYTES: usize = 256 << 10;

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A JSON object a line.
    #[default]
    Jsonl,
    /// Parquet, compressed with zstd.
    Parquet,
}

/// How lines are compressed. Parquet compresses itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// A zstd stream.
    Zstd,
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "jsonl" => Ok(Self::Jsonl),
            "parquet" => Ok(Self::Parquet),
            _ => Err(UnknownFormat),
        }
    }
}

/// A word that names no format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("known are jsonl, parquet")]
pub struct UnknownFormat;

/// Writes rows of a shape in a format.
pub struct RowWriter<W: Write + Send> {
    shape: Shape,
    inner: Inner<W>,
}

enum Inner<W: Write + Send> {
    Lines(BufWriter<W>),
    Compressed(BufWriter<zstd::stream::write::Encoder<'static, W>>),
    Parquet(Box<ParquetRows<W>>),
}

impl<W: Write + Send> std::fmt::Debug for RowWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowWriter")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl<W: Write + Send> RowWriter<W> {
    /// A writer of rows.
    ///
    /// # Errors
    /// A writer that fails.
    pub fn new(writer: W, shape: Shape, format: Format, compression: Compression) -> io::Result<Self> {
        let inner = match (format, compression) {
            (Format::Parquet, _) => Inner::Parquet(Box::new(ParquetRows::new(writer, shape)?)),
            (Format::Jsonl, Compression::None) => {
                Inner::Lines(BufWriter::with_capacity(BUFFER_BYTES, writer))
            }
            (Format::Jsonl, Compression::Zstd) => {
                let mut encoder = zstd::stream::write::Encoder::new(writer, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Inner::Compressed(BufWriter::with_capacity(BUFFER_BYTES, encoder))
            }
        };
        Ok(Self { shape, inner })
    }

    /// Writes the rows of a rollout, and gives their number.
    ///
    /// # Errors
    /// A writer that fails.
    pub fn write(&mut self, source: &Source<'_>) -> io::Result<u64> {
        match &mut self.inner {
            Inner::Lines(writer) => source.write_lines(self.shape, writer),
            Inner::Compressed(writer) => source.write_lines(self.shape, writer),
            Inner::Parquet(writer) => {
                let mut count = 0;
                for row in source.rows(self.shape) {
                    writer.write(&row)?;
                    count += 1;
                }
                Ok(count)
            }
        }
    }

    /// Ends what is written, and gives the writer back.
    ///
    /// # Errors
    /// A writer that fails.
    pub fn finish(self) -> io::Result<W> {
        let mut writer = match self.inner {
            Inner::Lines(writer) => writer.into_inner().map_err(io::IntoInnerError::into_error)?,
            Inner::Compressed(writer) => writer
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?
                .finish()?,
            Inner::Parquet(writer) => writer.finish()?,
        };
        writer.flush()?;
        Ok(writer)
    }
}
