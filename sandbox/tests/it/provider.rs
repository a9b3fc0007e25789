use crate::world::World;
use dressage_sandbox::lease::Lease;
use dressage_sandbox::{BackendConfig, E2bAccess, HuggingFaceAccess};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A provider that says what it is told to: status, more headers, body, for each request line that begins so, in order.
pub struct Scripted {
    pub url: String,
    pub heard: Arc<Mutex<Vec<String>>>,
}

/// A status that never comes.
pub const NEVER: u16 = 1;

pub type Line = (&'static str, u16, &'static str, String);

impl Scripted {
    pub async fn start(script: Vec<Line>) -> Self {
        Self::start_at(|_| script.clone()).await
    }

    /// With a script that names the address.
    pub async fn start_at(script: impl Fn(&str) -> Vec<Line>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = script(&url);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (keep, script) = (Arc::clone(&heard), Arc::new(Mutex::new(script)));
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let (keep, script) = (Arc::clone(&keep), Arc::clone(&script));
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while !whole(&request) {
                        if connection.read_buf(&mut request).await.unwrap() == 0 {
                            return;
                        }
                    }
                    let request = String::from_utf8_lossy(&request).into_owned();
                    keep.lock().unwrap().push(request.clone());
                    let answer = {
                        let mut script = script.lock().unwrap();
                        let found = script.iter().position(|line| request.starts_with(line.0));
                        found.map(|index| script.remove(index))
                    };
                    let (_, status, headers, body) =
                        answer.unwrap_or(("", 500, "", "not in the script".into()));
                    if status == NEVER {
                        return std::future::pending().await;
                    }
                    // Status 0: the connection is dropped without an answer.
                    if status != 0 {
                        let text = format!(
                            "HTTP/1.1 {status} -\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
                            body.len()
                        );
                        let _ = connection.write_all(text.as_bytes()).await;
                    }
                });
            }
        });
        Self { url, heard }
    }

    pub fn config(&self, world: &World) -> BackendConfig {
        let mut config = world.config.clone();
        config.providers.e2b = E2bAccess {
            api_key: Some("e2b_test".to_owned().into()),
            api_url: Some(self.url.clone()),
            sandbox_url: Some(self.url.clone()),
            ..E2bAccess::default()
        };
        config
    }

    pub fn huggingface(&self, world: &World) -> Arc<dyn dressage_sandbox::Backend> {
        let mut config = world.config.clone();
        config.providers.huggingface = HuggingFaceAccess {
            token: Some("hf_test".to_owned().into()),
            endpoint: Some(self.url.clone()),
            namespace: Some("me".into()),
            ..HuggingFaceAccess::default()
        };
        (dressage_sandbox::by_name("huggingface").unwrap().make)(&config).unwrap()
    }

    /// The first lines of what was asked.
    pub fn asked(&self) -> Vec<String> {
        let heard = self.heard.lock().unwrap();
        let line = |request: &String| request.lines().next().unwrap().replace(" HTTP/1.1", "");
        heard.iter().map(line).collect()
    }
}

fn whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    body.len() >= length.unwrap_or(0)
}

pub fn backend(config: &BackendConfig) -> Arc<dyn dressage_sandbox::Backend> {
    (dressage_sandbox::by_name("e2b").unwrap().make)(config).unwrap()
}

pub fn leases(world: &World) -> Vec<Lease> {
    Lease::all(&world.config.data_dir).unwrap().0
}

pub fn line(begins: &'static str, status: u16, body: &str) -> Line {
    (begins, status, "", body.to_owned())
}

/// Messages of envd as they are framed in a stream, the last of which ends it if it is not cut.
pub fn stream(messages: &[&str], ends: bool) -> String {
    let framed = |flags: u8, message: &str| {
        // Longer ones have lengths that are not text.
        assert!(message.len() < 128);
        let length = char::from(u8::try_from(message.len()).unwrap());
        format!("{}\0\0\0{length}{message}", char::from(flags))
    };
    let mut text: String = messages.iter().map(|message| framed(0, message)).collect();
    if ends {
        text.push_str(&framed(2, "{}"));
    }
    text
}

pub const STARTED: &str = r#"{"event":{"start":{"pid":77}}}"#;
pub const ENDED: &str = r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#;

/// A sandbox as it is answered to who made it.
pub const CREATED: &str =
    r#"{"templateID":"base","sandboxID":"i7","clientID":"c","envdVersion":"0.6.13","envdAccessToken":"t"}"#;
