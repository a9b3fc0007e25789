//! Rollouts as they leave: rows of a shape, as lines of JSON or as Parquet. docs/export.md describes the shapes; what they
//! hold is made in [`dressage_wire::export`].
//!
//! Rollouts are read one after the other, the next while the last is written, so that memory holds a handful of them,
//! however many there are.

/// Reading a rollout whole.
mod whole;

/// Which rollouts are exported.
mod filter;

/// Writing rows.
mod rows;

/// Rows in Parquet.
mod columnar;

/// Exporting many.
mod run;

pub use columnar::{ParquetError, read_parquet};
pub use filter::{ExportFilter, FilterError};
pub use rows::{Compression, Format, RowWriter};
pub use run::{Export, ExportCounts, Wanted};

use crate::error::StoreError;
use crate::open::Store;
use crate::write::blocking;
use dressage_wire::export::{Shape, Source};
use dressage_wire::ids::RolloutId;
use dressage_wire::trajectory::Selection;
use std::io::{BufWriter, Write};

impl Store {
    /// Writes the native document of a rollout, and gives the writer back.
    ///
    /// # Errors
    /// No such rollout; something of it that cannot be read; a writer that fails.
    pub async fn export_trajectory<W: Write + Send + 'static>(
        &self,
        id: RolloutId,
        writer: W,
    ) -> Result<W, StoreError> {
        self.export_rollout(id, Shape::Native, Selection::default(), writer)
            .await
    }

    /// Writes the rows of a rollout as lines of JSON, and gives the writer back. They are made piece by piece.
    ///
    /// # Errors
    /// As [`Store::export_trajectory`].
    pub async fn export_rollout<W: Write + Send + 'static>(
        &self,
        id: RolloutId,
        shape: Shape,
        selection: Selection,
        writer: W,
    ) -> Result<W, StoreError> {
        self.with_source(id, selection, move |source| {
            let mut buffered = BufWriter::new(writer);
            source.write_lines(shape, &mut buffered)?;
            buffered.into_inner().map_err(std::io::IntoInnerError::into_error)
        })
        .await?
        .map_err(|source| StoreError::Export { rollout: id, source })
    }

    /// Reads a rollout whole, and gives what `work` makes of it. For what takes longer than a moment.
    ///
    /// # Errors
    /// No such rollout; something of it that cannot be read.
    pub async fn with_source<T: Send + 'static>(
        &self,
        id: RolloutId,
        selection: Selection,
        work: impl FnOnce(&Source<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let whole = self.whole(id).await?;
        blocking("reading a trajectory", move || whole.with_source(selection, work)).await
    }
}
