use super::http::OwnClient;
use super::told::{hint, told};
use crate::error::Failure;
use crate::exit::Exit;
use futures_util::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, ObjectStoreScheme, RetryConfig};
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// How often a request is tried again after the first time.
const RETRIES: usize = 4;

/// The longest that a request is tried for.
const RETRIED_FOR: Duration = Duration::from_secs(60);

/// Where an object is.
#[derive(Debug)]
pub struct ObjectPlace {
    /// As people read it.
    pub name: String,
    pub(super) service: Service,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    S3,
    Google,
    Azure,
}

impl ObjectPlace {
    /// Whether a name is a URL, but not of a file.
    #[must_use]
    pub fn is_url(name: &str) -> bool {
        name.split_once("://").is_some_and(|(scheme, _)| scheme != "file")
    }

    /// Whether a URL names what objects are in, and no object: a bucket, or what ends with a slash.
    #[must_use]
    pub fn is_folder(name: &str) -> bool {
        let within = name.split_once("://").map_or(name, |(_, rest)| rest);
        !within.contains('/') || within.ends_with('/')
    }

    /// The object of a URL, with the keys and addresses that the environment has for its kind.
    ///
    /// # Errors
    /// A URL of no known kind, one that holds more than a place, or an environment that does not do.
    pub fn of(name: &str) -> Result<Self, Failure> {
        // What is wrong with a URL may be a key in it, so it is not repeated.
        let wrong = |problem: &str| Failure::input(format!("this URL {problem}"));
        let url: Url = name
            .parse()
            .map_err(|error| wrong("cannot be read").cause(format!("{error}")))?;
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            return Err(wrong("holds more than a place")
                .hint("keys are taken from the environment; see docs/export.md"));
        }
        let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|_| unknown(url.scheme()))?;
        let retry = RetryConfig {
            max_retries: RETRIES,
            retry_timeout: RETRIED_FOR,
            ..RetryConfig::default()
        };
        let (service, store): (_, object_store::Result<Arc<dyn ObjectStore>>) = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let builder = AmazonS3Builder::from_env().with_url(url).with_retry(retry);
                let store = builder.with_http_connector(OwnClient).build();
                (
                    Service::S3,
                    store.map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
                )
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let builder = GoogleCloudStorageBuilder::from_env()
                    .with_url(url)
                    .with_retry(retry);
                let store = builder.with_http_connector(OwnClient).build();
                (
                    Service::Google,
                    store.map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
                )
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let builder = MicrosoftAzureBuilder::from_env().with_url(url).with_retry(retry);
                let store = builder.with_http_connector(OwnClient).build();
                (
                    Service::Azure,
                    store.map(|store| Arc::new(store) as Arc<dyn ObjectStore>),
                )
            }
            _ => return Err(unknown(url.scheme())),
        };
        let store = store.map_err(|error| {
            Failure::input(format!("`{name}` cannot be reached"))
                .cause(told(&error))
                .hint(hint(service, &error))
        })?;
        Ok(Self {
            name: name.to_owned(),
            service,
            store,
            path,
        })
    }

    /// The object, in a file without a name.
    ///
    /// # Errors
    /// An object that is not there or cannot be read, or a disk that is full.
    pub async fn fetch(&self) -> Result<File, Failure> {
        let failed = |error: object_store::Error| {
            Failure::input(format!("`{}` could not be read", self.name))
                .cause(told(&error))
                .hint(hint(self.service, &error))
        };
        let kept = |error: std::io::Error| {
            Failure::new(
                Exit::MachineLacks,
                format!("`{}` could not be kept while it is read", self.name),
            )
            .cause(error.to_string())
        };
        let mut file = tempfile::tempfile().map_err(kept)?;
        let mut pieces = self.store.get(&self.path).await.map_err(failed)?.into_stream();
        while let Some(piece) = pieces.try_next().await.map_err(failed)? {
            file.write_all(&piece).map_err(kept)?;
        }
        file.rewind().map_err(kept)?;
        Ok(file)
    }

    /// It cannot be written.
    #[must_use]
    pub fn write_failure(&self, error: &object_store::Error) -> Failure {
        Failure::new(
            Exit::MachineLacks,
            format!("`{}` could not be written", self.name),
        )
        .cause(told(error))
        .hint(hint(self.service, error))
    }
}

fn unknown(scheme: &str) -> Failure {
    Failure::input(format!("`{scheme}` is not a kind of URL that is known"))
        .hint("known are s3://, gs://, az:// and file://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_a_key_in_it_is_refused_and_not_repeated() {
        for url in [
            "s3://AKIA0:hunter2@bucket/x",
            "az://container/x?sig=hunter2",
            "https://a.blob.core.windows.net/c/x?sig=hunter2",
        ] {
            let failure = ObjectPlace::of(url).unwrap_err();
            assert_eq!(failure.exit, Exit::BadInput);
            assert!(!failure.render().contains("hunter2"), "{}", failure.render());
        }
        for url in [
            "gopher://x/y",
            "https://example.com/x",
            "http://127.0.0.1:1/x",
            "ftp://x/y",
        ] {
            let text = ObjectPlace::of(url).unwrap_err().render();
            assert!(text.contains("is not a kind of URL"), "{text}");
        }
    }

    #[test]
    fn buckets_and_what_ends_with_a_slash_are_folders() {
        for (name, folder) in [
            ("s3://b", true),
            ("s3://b/", true),
            ("s3://b/x/", true),
            ("s3://b/x", false),
        ] {
            assert_eq!(ObjectPlace::is_folder(name), folder, "{name}");
            assert!(ObjectPlace::is_url(name));
        }
        assert!(!ObjectPlace::is_url("file:///x") && !ObjectPlace::is_url("x.jsonl"));
    }
}
