use super::filter::ExportFilter;
use super::rows::RowWriter;
use super::whole::Whole;
use crate::error::StoreError;
use crate::open::Store;
use crate::rows::ListFilter;
use dressage_wire::ids::RolloutId;
use dressage_wire::trajectory::Selection;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// Rollouts that a list is read by.
const PAGE: u32 = 500;

/// Rollouts that are read while another is written.
const AHEAD: usize = 2;

/// What is exported.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// Which rollouts.
    pub wanted: Wanted,
    /// Which of those.
    pub filter: ExportFilter,
    /// What of them is trained.
    pub selection: Selection,
}

/// Which rollouts are exported.
#[derive(Clone, Debug, Default)]
pub enum Wanted {
    /// All, the one asked for last first.
    #[default]
    All,
    /// These, in this order.
    Ids(Vec<RolloutId>),
}

/// How far an export is.
#[derive(Debug, Default)]
pub struct ExportCounts {
    /// Rollouts that were read.
    pub read: AtomicU64,
    /// Rollouts that were written: they passed the filter.
    pub rollouts: AtomicU64,
    /// Rollouts that passed the filter and have no row of the shape, such as those without token ids.
    pub without_rows: AtomicU64,
    /// Rows that were written.
    pub rows: AtomicU64,
}

impl ExportCounts {
    /// Rollouts, those of them without rows, and rows, so far.
    #[must_use]
    pub fn written(&self) -> (u64, u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.rollouts), load(&self.without_rows), load(&self.rows))
    }
}

impl Store {
    /// Exports rollouts, one after the other, and gives the writer back.
    ///
    /// # Errors
    /// A rollout that is named and not there, or cannot be read; a writer that fails.
    pub async fn export<W: Write + Send + 'static>(
        &self,
        export: Export,
        mut writer: RowWriter<W>,
        counts: Arc<ExportCounts>,
    ) -> Result<W, StoreError> {
        let (to_writer, mut wholes) = mpsc::channel::<Next>(1);
        let (filter, selection) = (export.filter.clone(), export.selection.clone());
        let counted = counts.clone();
        let writing = tokio::task::spawn_blocking(move || {
            loop {
                let whole = match wholes.blocking_recv() {
                    Some(Next::Rollout(whole)) => whole,
                    Some(Next::End) => return writer.finish().map(Some).map_err(StoreError::ExportEnd),
                    // Reading has failed. What ends well would say that everything is in it.
                    None => return Ok(None),
                };
                let written = whole.with_source(selection.clone(), |source| {
                    filter.fits_calls(source.trajectory).then(|| writer.write(source))
                });
                let Some(written) = written else { continue };
                let rollout = whole.stored.row.id;
                let rows = written.map_err(|source| StoreError::Export { rollout, source })?;
                counted.rollouts.fetch_add(1, Ordering::Relaxed);
                counted
                    .without_rows
                    .fetch_add(u64::from(rows == 0), Ordering::Relaxed);
                counted.rows.fetch_add(rows, Ordering::Relaxed);
            }
        });
        let read = self.read_into(&export, &to_writer, &counts).await;
        drop(to_writer);
        let interrupted = |source| StoreError::Interrupted {
            operation: "exporting rollouts",
            source,
        };
        let written = writing.await.map_err(interrupted)?;
        read?;
        written?.ok_or_else(|| StoreError::ExportEnd(std::io::ErrorKind::UnexpectedEof.into()))
    }

    async fn read_into(
        &self,
        export: &Export,
        to_writer: &mpsc::Sender<Next>,
        counts: &ExportCounts,
    ) -> Result<(), StoreError> {
        let mut under_way = VecDeque::new();
        let mut listed = Listed::new(export);
        loop {
            let next = match under_way.len() {
                0..=AHEAD => listed.next(self).await?,
                _ => None,
            };
            match next {
                Some(id) => {
                    let store = self.clone();
                    under_way.push_back(tokio::spawn(async move { store.whole(id).await }));
                }
                None => {
                    let Some(reading) = under_way.pop_front() else {
                        // Where nobody takes it, the writer has failed, and says why.
                        let _ = to_writer.send(Next::End).await;
                        return Ok(());
                    };
                    let whole = reading.await.map_err(|source| StoreError::Interrupted {
                        operation: "reading a rollout",
                        source,
                    })??;
                    counts.read.fetch_add(1, Ordering::Relaxed);
                    let fits = export.filter.fits_row(&whole.stored.row);
                    if fits && to_writer.send(Next::Rollout(Box::new(whole))).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// What the writer gets next.
enum Next {
    Rollout(Box<Whole>),
    /// That was all.
    End,
}

/// The ids of what is wanted, page by page.
struct Listed {
    filter: Option<ListFilter>,
    export: ExportFilter,
    page: VecDeque<RolloutId>,
}

impl Listed {
    fn new(export: &Export) -> Self {
        let (filter, page) = match &export.wanted {
            Wanted::Ids(ids) => (None, ids.iter().copied().collect()),
            Wanted::All => (Some(export.filter.listed()), VecDeque::new()),
        };
        Self {
            filter,
            export: export.filter.clone(),
            page,
        }
    }

    async fn next(&mut self, store: &Store) -> Result<Option<RolloutId>, StoreError> {
        while self.page.is_empty() {
            let Some(filter) = &mut self.filter else {
                return Ok(None);
            };
            filter.limit = Some(PAGE);
            let rows = store.list(filter).await?;
            filter.after = rows.last().map(|row| row.id);
            if rows.is_empty() {
                self.filter = None;
            }
            // Where the row says it all, nothing more is read.
            let fitting = rows.iter().filter(|row| self.export.fits_row(row));
            self.page = fitting.map(|row| row.id).collect();
        }
        Ok(self.page.pop_front())
    }
}
