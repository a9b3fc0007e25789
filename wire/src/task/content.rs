use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;

/// The content of a file of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FileContent {
    /// UTF-8 text.
    Text(String),
    /// Bytes, base64 in the task file.
    Base64 {
        /// Standard alphabet, padded.
        base64: String,
    },
    /// A file beside the task file; read when the task is loaded, and replaced by its bytes.
    Source {
        /// Path relative to the task file.
        source: String,
    },
}

impl FileContent {
    /// Content with these bytes: text where they are UTF-8.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Base64 {
                base64: STANDARD.encode(error.as_bytes()),
            },
        }
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// The base64 text is not base64, or the content is still a reference to another file.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, ContentError> {
        match self {
            Self::Text(text) => Ok(text.as_bytes().into()),
            Self::Base64 { base64 } => STANDARD
                .decode(base64)
                .map(Cow::Owned)
                .map_err(ContentError::Base64),
            Self::Source { source } => Err(ContentError::NotLoaded {
                source_path: source.clone(),
            }),
        }
    }
}

/// Why the content of a file cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The text is not base64.
    #[error("content is not base64")]
    Base64(#[source] base64::DecodeError),
    /// The content is in another file that was not read: the task did not come from a file itself.
    #[error(
        "source file `{source_path}` was not loaded; only a task that is loaded from a file can refer to others"
    )]
    NotLoaded {
        /// Path relative to the task file.
        source_path: String,
    },
}

// Written out since a derived untagged enum says only that "no variant matched".
impl<'de> Deserialize<'de> for FileContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

const EXPECTED: &str = "text, or a table with one key, `base64` or `source`";

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = FileContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<FileContent, E> {
        Ok(FileContent::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<FileContent, E> {
        Ok(FileContent::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileContent, A::Error> {
        let Some((key, value)) = map.next_entry::<String, String>()? else {
            return Err(A::Error::custom(format_args!(
                "an empty table, expected {EXPECTED}"
            )));
        };
        let content = match key.as_str() {
            "base64" => FileContent::Base64 { base64: value },
            "source" => FileContent::Source { source: value },
            _ => return Err(A::Error::unknown_field(&key, &["base64", "source"])),
        };
        match map.next_key::<String>()? {
            None => Ok(content),
            Some(extra) => Err(A::Error::custom(format_args!(
                "a second key `{extra}`, expected {EXPECTED}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_text_where_it_can_be_and_comes_back_as_the_same_bytes() {
        for bytes in [b"plain\n".to_vec(), b"\xff\x00\xfe".to_vec(), Vec::new()] {
            let content = FileContent::of(bytes.clone());
            assert_eq!(content.bytes().unwrap(), bytes);
            let json = serde_json::to_string(&content).unwrap();
            assert_eq!(serde_json::from_str::<FileContent>(&json).unwrap(), content);
        }
    }

    #[test]
    fn bad_content_is_an_error_that_says_what_was_expected() {
        let read = |json: &str| serde_json::from_str::<FileContent>(json).unwrap_err().to_string();
        assert!(read("7").contains("expected text, or a table"), "{}", read("7"));
        assert!(read("{}").contains("an empty table"), "{}", read("{}"));
        assert!(
            read(r#"{"sauce": "a"}"#).contains("unknown field `sauce`"),
            "{}",
            read(r#"{"sauce": "a"}"#)
        );
        let both = read(r#"{"source": "a", "base64": ""}"#);
        assert!(both.contains("a second key `base64`"), "{both}");
        let bad = FileContent::Base64 {
            base64: "not base64!".into(),
        };
        assert!(matches!(bad.bytes(), Err(ContentError::Base64(_))));
    }
}
