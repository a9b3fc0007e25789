use crate::SandboxSpec;
use crate::config::HuggingFaceAccess;
use crate::remote::http::{
    Answer, Call, HttpClient, HttpError, Retry, collect, hide, parse, percent_encoded, secret_header,
};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LINK};
use http::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;
use tokio::sync::OnceCell;

/// For an answer of the hub: it asks for up to 55 s of patience where it limits calls.
const WITHIN: Duration = Duration::from_secs(120);

/// The longest answer of it.
const LIMIT: usize = 8 << 20;

/// Pages of a list that are read.
const PAGES: usize = 50;

/// The port of the program in every sandbox.
const PORT: u16 = 49983;

/// The program by which sandboxes are used, version 0.7.0: its name and its digest are one.
const SERVER_SHA256: &str = "eb2b04f79fbe765195300aaf1582be2a2a9ea698ff067d0cab428171d5584932";

/// Where the hub has it.
const SERVER_BUCKET: &str = "huggingface/sbx-server";

/// Where its bucket is in a job.
const SERVER_MOUNT: &str = "/.hf-sbx-server";

/// What a job begins with: gets the program, sees that it is the one, and becomes it.
const BOOTSTRAP: &str = r#"
server=/tmp/.sbx-server
if command -v curl >/dev/null 2>&1; then curl -fsSL -o "$server" "$SBX_SERVER_URL"
elif command -v wget >/dev/null 2>&1; then wget -q -O "$server" "$SBX_SERVER_URL"
else false; fi || cp "$SBX_SERVER_MOUNT/sbx-server-$SBX_SERVER_SHA256" "$server" || exit 1
if command -v sha256sum >/dev/null 2>&1; then digest=$(sha256sum <"$server")
elif command -v openssl >/dev/null 2>&1; then digest=$(openssl dgst -sha256 -r <"$server")
else echo "there is neither sha256sum nor openssl in this image" >&2; exit 1; fi
if [ "${digest%% *}" != "$SBX_SERVER_SHA256" ]; then
  echo "the sandbox server that was fetched is another than is expected: ${digest%% *}" >&2; exit 1
fi
chmod 700 "$server" || exit 1
unset digest SBX_SERVER_URL SBX_SERVER_MOUNT SBX_SERVER_SHA256
exec "$server"
"#;

/// The Jobs of the hub.
#[derive(Debug)]
pub(super) struct Jobs {
    pub(super) http: HttpClient,
    pub(super) endpoint: String,
    pub(super) token: SecretString,
    flavor: String,
    given: Option<String>,
    /// Asked for once: the hub limits that question more than others.
    asked: OnceCell<String>,
}

/// A job that was made.
pub(super) struct Job {
    pub(super) id: String,
    /// Where its program is reached.
    pub(super) url: String,
    /// Wanted by that program.
    pub(super) token: SecretString,
}

/// A job as the hub tells of it.
#[derive(Debug, Deserialize)]
struct Told {
    id: String,
    status: Status,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    stage: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    expose_urls: Option<Vec<String>>,
}

impl Status {
    fn is_over(&self) -> bool {
        matches!(
            self.stage.as_str(),
            "COMPLETED" | "ERROR" | "DELETED" | "CANCELED"
        )
    }
}

#[derive(Deserialize)]
struct Whoami {
    name: String,
}

impl Jobs {
    pub(super) fn new(access: &HuggingFaceAccess, token: SecretString) -> Self {
        let endpoint = access.endpoint.as_deref().unwrap_or("https://huggingface.co");
        Self {
            http: HttpClient::new(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            flavor: access.flavor.clone().unwrap_or_else(|| "cpu-basic".into()),
            given: access.namespace.clone(),
            asked: OnceCell::new(),
        }
    }

    /// Who pays.
    pub(super) async fn namespace(&self) -> Result<&str, HttpError> {
        if let Some(given) = &self.given {
            return Ok(given);
        }
        let asked = self.asked.get_or_try_init(|| async {
            let answer = self
                .call(Method::GET, "/api/whoami-v2", None, Retry::Answered)
                .await?;
            parse::<Whoami>(&answer.body).map(|whoami| whoami.name)
        });
        asked.await.map(String::as_str)
    }

    /// Makes a job whose program has a token of its own.
    pub(super) async fn create(
        &self,
        spec: &SandboxSpec,
        mut labels: BTreeMap<String, String>,
    ) -> Result<Job, HttpError> {
        let nonce = new_nonce().map_err(|error| HttpError::Lost(Box::new(error)))?;
        let token = sandbox_token(&self.token, &nonce);
        for (name, value) in [
            ("hf-sandbox", "1"),
            ("hf-sandbox-mode", "dedicated"),
            ("hf-sandbox-nonce", nonce.as_str()),
        ] {
            labels.insert(name.into(), value.into());
        }
        let lifetime_s = match spec.lifetime.as_secs() {
            0 => 3600,
            seconds => seconds.min(86_400),
        };
        let url = format!(
            "{}/buckets/{SERVER_BUCKET}/resolve/sbx-server-{SERVER_SHA256}",
            self.endpoint
        );
        let mut body = json!({
            "command": ["/bin/sh", "-c", BOOTSTRAP],
            "arguments": [],
            "environment": {
                "SBX_PORT": PORT.to_string(),
                // A rollout that waits is idle too: what nobody uses any more ends with its lifetime.
                "SBX_IDLE_TIMEOUT": lifetime_s.to_string(),
                "SBX_SERVER_URL": url,
                "SBX_SERVER_SHA256": SERVER_SHA256,
                "SBX_SERVER_MOUNT": SERVER_MOUNT,
            },
            "secrets": { "SBX_TOKEN": token.expose_secret() },
            "flavor": self.flavor,
            "timeoutSeconds": lifetime_s,
            "labels": labels,
            "volumes": [{
                "type": "bucket",
                "source": SERVER_BUCKET,
                "mountPath": SERVER_MOUNT,
                "readOnly": true,
            }],
            "expose": { "ports": [PORT], "portsPublic": [] },
        });
        let image = spec.image.as_deref().unwrap_or("python:3.12");
        let space = ["https://huggingface.co/spaces/", "hf.co/spaces/"]
            .iter()
            .find_map(|begin| image.strip_prefix(begin));
        if let Some(members) = body.as_object_mut() {
            let (name, value) = space.map_or(("dockerImage", image), |space| ("spaceId", space));
            members.insert(name.into(), value.into());
        }
        // There is no key by which a repetition would be known: one after a lost answer would make two.
        let path = self.path("").await?;
        let answer = self.call(Method::POST, &path, Some(&body), Retry::Undone).await?;
        let told: Told = parse(&answer.body)?;
        let wanted = format!("--{PORT}.");
        let url = told
            .status
            .expose_urls
            .into_iter()
            .flatten()
            .find(|url| url.contains(&wanted));
        // The token goes there.
        match url {
            Some(url) if url.starts_with("https://") || !self.endpoint.starts_with("https://") => Ok(Job {
                id: told.id,
                url: url.trim_end_matches('/').to_owned(),
                token,
            }),
            _ => Err(HttpError::Malformed("a job whose port is not exposed".into())),
        }
    }

    /// Ends a job; one that is not there, or is over, has ended.
    pub(super) async fn cancel(&self, id: &str) -> Result<(), HttpError> {
        let path = self.path(&format!("/{}/cancel", percent_encoded(id))).await?;
        let refused = match self.call(Method::POST, &path, None, Retry::Repeatable).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        match self.over(id).await {
            Ok(Some(_)) => Ok(()),
            _ => Err(refused),
        }
    }

    /// Why a job is over; `None` where it is not.
    pub(super) async fn over(&self, id: &str) -> Result<Option<String>, HttpError> {
        let path = self.path(&format!("/{}", percent_encoded(id))).await?;
        let answer = match self.call(Method::GET, &path, None, Retry::Repeatable).await {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {
                return Ok(Some("it is not there any more".into()));
            }
            answer => answer?,
        };
        let status = parse::<Told>(&answer.body)?.status;
        let message = hide(&status.message.clone().unwrap_or_default(), &self.headers()?);
        Ok(status
            .is_over()
            .then(|| format!("{} {message}", status.stage).trim_end().to_owned()))
    }

    /// Ids of the jobs that carry all of `labels` and are not over.
    pub(super) async fn find(&self, labels: &BTreeMap<String, String>) -> Result<Vec<String>, HttpError> {
        let wanted: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("label={}", percent_encoded(&format!("{name}={value}"))))
            .collect();
        let mut path = self.path(&format!("?{}", wanted.join("&"))).await?;
        let mut found = Vec::new();
        for _ in 0..PAGES {
            let answer = self.call(Method::GET, &path, None, Retry::Repeatable).await?;
            for told in parse::<Vec<Told>>(&answer.body)? {
                let carried = told.labels.unwrap_or_default();
                let carries = labels
                    .iter()
                    .all(|(name, value)| carried.get(name) == Some(value));
                if carries && !told.status.is_over() {
                    found.push(told.id);
                }
            }
            match next_page(&answer.headers, &self.endpoint) {
                Some(next) => path = next,
                None => return Ok(found),
            }
        }
        Err(HttpError::Malformed("a list without an end".into()))
    }

    /// The last lines that a job wrote, as well as they can be had.
    pub(super) async fn last_words(&self, id: &str) -> String {
        let Ok(headers) = self.headers() else {
            return String::new();
        };
        let reading = async {
            let path = self.path(&format!("/{}/logs", percent_encoded(id))).await.ok()?;
            let call = self.request(Method::GET, &path, None).ok()?;
            let answer = self.http.open(&call).await.ok()?;
            collect(answer.into_body(), LIMIT).await.ok()
        };
        let read = tokio::time::timeout(Duration::from_secs(10), reading).await;
        let log = read.ok().flatten().unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<String> = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok())
            .filter_map(|line| Some(line.get("data")?.as_str()?.trim().to_owned()))
            .filter(|line| !line.is_empty())
            .collect();
        let last: Vec<&str> = lines.iter().rev().take(5).rev().map(String::as_str).collect();
        let last = hide(&last.join(" | "), &headers);
        last.chars().take(400).collect()
    }

    async fn path(&self, rest: &str) -> Result<String, HttpError> {
        Ok(format!(
            "/api/jobs/{}{rest}",
            percent_encoded(self.namespace().await?)
        ))
    }

    fn headers(&self) -> Result<HeaderMap, HttpError> {
        let mut headers = HeaderMap::new();
        let bearer = format!("Bearer {}", self.token.expose_secret());
        secret_header(&mut headers, "authorization", &bearer)?;
        Ok(headers)
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Call, HttpError> {
        let mut headers = self.headers()?;
        let mut bytes = Bytes::new();
        if let Some(json) = body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            bytes = Bytes::from(json.to_string());
        }
        Ok(Call {
            method,
            url: format!("{}{path}", self.endpoint),
            headers,
            body: bytes.into(),
        })
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        retry: Retry,
    ) -> Result<Answer, HttpError> {
        let call = self.request(method, path, body)?;
        self.http.call(&call, retry, WITHIN, LIMIT).await
    }
}

/// Path and query of the next page, which must be at the same address: the token goes there.
fn next_page(headers: &HeaderMap, endpoint: &str) -> Option<String> {
    headers
        .get_all(LINK)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|link| {
            let (url, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
            let path = url.strip_prefix(endpoint).unwrap_or(url);
            (rest.contains("rel=\"next\"") && path.starts_with("/api/jobs/")).then(|| path.to_owned())
        })
}

/// 128 bits from the system, in hexadecimal digits.
fn new_nonce() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hexadecimal(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The token of a job's program, as `huggingface_hub` derives it: who has the account's can connect with that library too.
fn sandbox_token(token: &SecretString, nonce: &str) -> SecretString {
    let message = format!("hf-sandbox:{nonce}");
    hexadecimal(&hmac_sha256(token.expose_secret().as_bytes(), message.as_bytes())).into()
}

/// HMAC (RFC 2104) with SHA-256.
fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; 64];
    if key.len() > block.len() {
        let digest = Sha256::digest(key);
        block.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    } else {
        block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    }
    let inner = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x36))
        .chain_update(message)
        .finalize();
    Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x5c))
        .chain_update(inner)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_is_that_of_the_examples_of_rfc_4231() {
        for (key, message, digest) in [
            (
                b"Jefe".to_vec(),
                "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                vec![0xaa; 131],
                "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            assert_eq!(hexadecimal(&hmac_sha256(&key, message.as_bytes())), digest);
        }
    }

    #[test]
    fn the_next_page_is_at_the_same_address_or_is_none() {
        let endpoint = "https://huggingface.co";
        let next = |link: &'static str| {
            next_page(
                &HeaderMap::from_iter([(LINK, HeaderValue::from_static(link))]),
                endpoint,
            )
        };
        assert_eq!(
            next("<https://huggingface.co/api/jobs/me?cursor=a>; rel=\"next\"").as_deref(),
            Some("/api/jobs/me?cursor=a")
        );
        assert_eq!(next("<https://evil.example/api/jobs/me>; rel=\"next\""), None);
        assert_eq!(
            next("<https://huggingface.co/api/jobs/me?cursor=a>; rel=\"prev\""),
            None
        );
    }
}
