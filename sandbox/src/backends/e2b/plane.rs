use crate::config::E2bAccess;
use crate::remote::http::{
    Answer, Call, HttpClient, HttpError, Retry, parse, percent_encoded, secret_header,
};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// For an answer of the control plane: as the SDK waits.
pub(super) const WITHIN: Duration = Duration::from_secs(60);

/// The longest answer of it.
const LIMIT: usize = 8 << 20;

/// Pages of a list that are read: 100 entries each.
const PAGES: usize = 200;

/// E2B's control plane.
#[derive(Clone, Debug)]
pub(super) struct ControlPlane {
    pub(super) http: HttpClient,
    pub(super) api: String,
    /// One address for the inside of all sandboxes, if it is not that of the domain.
    sandbox_url: Option<String>,
    domain: String,
    key: SecretString,
}

/// A sandbox as its creation answers it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Created {
    #[serde(rename = "sandboxID")]
    pub(super) sandbox_id: String,
    #[serde(default)]
    pub(super) domain: Option<String>,
    #[serde(default, deserialize_with = "secret")]
    pub(super) envd_access_token: Option<SecretString>,
    /// Wanted of who connects to its ports, besides envd's.
    #[serde(default, deserialize_with = "secret")]
    pub(super) traffic_access_token: Option<SecretString>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

impl ControlPlane {
    pub(super) fn new(access: &E2bAccess, key: SecretString) -> Self {
        let domain = access.domain.clone().unwrap_or_else(|| "e2b.app".into());
        let whole = |url: &String| url.trim_end_matches('/').to_owned();
        Self {
            http: HttpClient::new(),
            api: access
                .api_url
                .as_ref()
                .map_or_else(|| format!("https://api.{domain}"), whole),
            sandbox_url: access.sandbox_url.as_ref().map(whole),
            domain,
            key,
        }
    }

    /// The same over connections of which each is used once.
    pub(super) fn unpooled(&self) -> Self {
        Self {
            http: HttpClient::unpooled(),
            ..self.clone()
        }
    }

    /// A text of the provider's without the key.
    pub(super) fn hide(&self, text: &str) -> String {
        match self.key.expose_secret() {
            // Shorter ones are none, and would stand in many a word.
            key if key.len() >= 8 => text.replace(key, "[secret]"),
            _ => text.to_owned(),
        }
    }

    /// Where the inside of a sandbox is reached; which sandbox is meant, headers say.
    pub(super) fn inside(&self, created: &Created) -> String {
        let domain = created.domain.as_ref().unwrap_or(&self.domain);
        self.sandbox_url
            .clone()
            .unwrap_or_else(|| format!("https://sandbox.{domain}"))
    }

    /// Makes a sandbox: by the second version of the call, which can be repeated; by the first where there is none other.
    pub(super) async fn create(&self, mut body: Value, key: &str) -> Result<Created, HttpError> {
        let answer = match self
            .call(
                Method::POST,
                "/v2/sandboxes",
                Some((&body, Some(key))),
                Retry::Answered,
                WITHIN,
            )
            .await
        {
            Err(error)
                if matches!(
                    error.status(),
                    Some(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
                ) && !error.to_string().contains("template") =>
            {
                if let Some(members) = body.as_object_mut() {
                    members.insert("secure".into(), json!(true));
                }
                // There is no key by which a repetition would be known: a late answer to 502 or 504 would leave two.
                self.call(
                    Method::POST,
                    "/sandboxes",
                    Some((&body, None)),
                    Retry::Undone,
                    WITHIN,
                )
                .await?
            }
            answer => answer?,
        };
        parse(&answer.body)
    }

    /// Ends a sandbox; one that is not there is ended.
    pub(super) async fn kill(&self, sandbox: &str) -> Result<(), HttpError> {
        let path = format!("/sandboxes/{}", percent_encoded(sandbox));
        match self
            .call(Method::DELETE, &path, None, Retry::Answered, WITHIN)
            .await
        {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    /// Sandboxes, running and paused, that carry all of `labels`, with the labels of each.
    pub(super) async fn list(
        &self,
        labels: &BTreeMap<String, String>,
    ) -> Result<Vec<(String, BTreeMap<String, String>)>, HttpError> {
        let wanted: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{}={}", percent_encoded(name), percent_encoded(value)))
            .collect();
        let mut query = "state=running,paused&limit=100".to_owned();
        if !wanted.is_empty() {
            query.push_str(&format!("&metadata={}", percent_encoded(&wanted.join("&"))));
        }
        let listed = self.pages::<Listed>(&format!("/v2/sandboxes?{query}")).await?;
        Ok(listed
            .into_iter()
            .map(|listed| (listed.sandbox_id, listed.metadata.unwrap_or_default()))
            .filter(|(_, carried)| {
                labels
                    .iter()
                    .all(|(name, value)| carried.get(name) == Some(value))
            })
            .collect())
    }

    /// All pages of a list, whose path has a query.
    pub(super) async fn pages<T: DeserializeOwned>(&self, list: &str) -> Result<Vec<T>, HttpError> {
        let (mut found, mut next) = (Vec::new(), String::new());
        for _ in 0..PAGES {
            let path = format!("{list}{next}");
            let answer = self
                .call(Method::GET, &path, None, Retry::Answered, WITHIN)
                .await?;
            found.extend(parse::<Vec<T>>(&answer.body)?);
            match answer
                .headers
                .get("x-next-token")
                .and_then(|value| value.to_str().ok())
            {
                Some(token) if !token.is_empty() => {
                    next = format!("&nextToken={}", percent_encoded(token));
                }
                _ => return Ok(found),
            }
        }
        Err(HttpError::Malformed("a list without an end".into()))
    }

    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<(&Value, Option<&str>)>,
        retry: Retry,
        within: Duration,
    ) -> Result<Answer, HttpError> {
        let mut headers = HeaderMap::new();
        secret_header(&mut headers, "x-api-key", self.key.expose_secret())?;
        let mut bytes = Bytes::new();
        if let Some((json, key)) = body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            if let Some(key) = key.and_then(|key| HeaderValue::from_str(key).ok()) {
                headers.insert(HeaderName::from_static("idempotency-key"), key);
            }
            bytes = Bytes::from(json.to_string());
        }
        let call = Call {
            method,
            url: format!("{}{path}", self.api),
            headers,
            body: bytes.into(),
        };
        self.http.call(&call, retry, within, LIMIT).await
    }
}

fn secret<'de, D: Deserializer<'de>>(text: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(text)?.map(SecretString::from))
}
