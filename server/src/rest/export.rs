use crate::http::App;
use crate::selection;
use crate::service::ServiceError;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dressage_store::{Compression, Export, ExportFilter, Format, RowWriter, StoreError, Wanted};
use dressage_wire::export::Shape;
use std::io::{self, Write};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Bytes of a body that are sent together; more where what must stand together is larger.
pub const PIECE: usize = 64 << 10;

/// Pieces of a body that are made ahead of whoever takes them.
const PIECES_AHEAD: usize = 4;

/// The keys of an export's query, besides those of what is trained.
const KEYS: &[&str] = &["shape", "filter", "ids"];

/// Exports rollouts as rows for trainers, one JSON object a line, sent as they are made. docs/export.md describes the rows.
/// Where something fails on the way, the reply breaks off instead of ending well.
#[utoipa::path(
    get, path = "/api/v1/export", tag = "records", operation_id = "export",
    params(
        ("shape" = Option<String>, Query, description = "what a row is: `native` (default), `trl`, `verl`, `chat`, `atif`"),
        ("filter" = Option<String>, Query, description = "terms such as `reward>=0.5 agent=opencode -flag=truncated`"),
        ("ids" = Option<String>, Query, description = "ids of rollouts, with commas; all that are finished if unset"),
        ("train" = Option<String>, Query, description = "what is trained, with commas: `agent` (default), `subagent`, `title`, `summary`"),
        ("truncated" = Option<String>, Query, description = "turns that a token limit ended: `keep` (default) or `drop`"),
        ("subagent_reward" = Option<String>, Query, description = "`shared` (default) or `none`"),
        ("top_logprobs" = Option<String>, Query, description = "alternatives in native rows: `keep` (default) or `drop`"),
    ),
    responses(
        (status = 200, description = "The rows.", content_type = "application/x-ndjson", body = String),
        (status = 404, description = "There is no rollout of an id.", body = crate::http::ErrorBody),
        (status = 422, description = "A key or value is wrong.", body = crate::http::ErrorBody),
    )
)]
pub async fn export(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Response, ServiceError> {
    let (shape, mut export, ids) = read(query.as_deref().unwrap_or(""))?;
    if let Some(names) = ids {
        let mut ids = Vec::new();
        for name in &names {
            ids.push(app.service.find(name).await?);
        }
        export.wanted = Wanted::Ids(ids);
    }
    let body = streamed(move |writer| async move {
        let rows = RowWriter::new(writer, shape, Format::Jsonl, Compression::None);
        let rows = rows.map_err(StoreError::ExportEnd)?;
        app.service.store().export(export, rows, Arc::default()).await
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// What is asked for, and of which rollouts where it names some.
fn read(query: &str) -> Result<(Shape, Export, Option<Vec<String>>), ServiceError> {
    let (mut shape, mut export, mut ids) = (Shape::default(), Export::default(), None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong = |problem: &dyn std::fmt::Display| ServiceError::invalid(&*key, problem.to_string());
        match &*key {
            _ if value.is_empty() => {}
            "shape" => shape = value.parse().map_err(|error| wrong(&error))?,
            "filter" => export.filter = value.parse::<ExportFilter>().map_err(|error| wrong(&error))?,
            "ids" => ids = Some(value.split(',').map(|id| id.trim().to_owned()).collect()),
            other => match selection::set(&mut export.selection, other, &value) {
                Some(set) => set.map_err(|problem| wrong(&problem))?,
                None => {
                    let known = KEYS.iter().chain(selection::KEYS).copied();
                    let meant = crate::error::nearest(other, known.clone());
                    let hint = match meant {
                        Some(meant) => format!("did you mean `{meant}`?"),
                        None => format!("known are {}", known.collect::<Vec<_>>().join(", ")),
                    };
                    return Err(wrong(&"unknown key").hint(Some(hint)));
                }
            },
        }
    }
    Ok((shape, export, ids))
}

/// A body that `work` writes, as it is taken. Where that fails the body breaks off.
pub fn streamed<T, F>(work: impl FnOnce(BodyWriter) -> F) -> Body
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
    T: Send,
{
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    let writing = work(BodyWriter(sender.clone()));
    tokio::spawn(async move {
        if let Err(error) = writing.await {
            // Whoever has gone takes nothing, and needs not be told.
            if !sender.is_closed() {
                tracing::warn!(error = %crate::workspace::chain(&error), "an export was not sent whole");
            }
            let _ = sender.send(Err(io::Error::other("the export failed"))).await;
        }
    });
    Body::from_stream(futures_util::stream::unfold(pieces, |mut pieces| async move {
        pieces.recv().await.map(|piece| (piece, pieces))
    }))
}

/// Writes a body piece by piece, from a thread that may block.
#[derive(Debug)]
pub struct BodyWriter(mpsc::Sender<io::Result<Bytes>>);

impl Write for BodyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Ok(Bytes::copy_from_slice(bytes));
        let sent = self.0.blocking_send(piece);
        sent.map(|()| bytes.len())
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dressage_wire::call::Purpose;

    #[test]
    fn a_query_is_read_and_what_is_wrong_in_it_is_named() {
        let query = "shape=verl&filter=reward%3E%3D0.5+agent%3Dx&ids=a,%20b&train=agent,subagent";
        let (shape, export, ids) = read(query).unwrap();
        assert_eq!(shape, Shape::Verl);
        assert_eq!(export.filter, "reward>=0.5 agent=x".parse().unwrap());
        assert_eq!(export.selection.purposes, [Purpose::Agent, Purpose::Subagent]);
        assert_eq!(ids.unwrap(), ["a", "b"]);
        for (query, key) in [
            ("shape=atari", "shape"),
            ("filter=x", "filter"),
            ("train=foreign", "train"),
            ("shap=verl", "shap"),
        ] {
            assert_eq!(read(query).unwrap_err().details[0].path, key, "{query}");
        }
    }
}
