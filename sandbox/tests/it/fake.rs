//! Providers that run real programs, as their protocols say and not as their makers do: what is tested against them is this client.
//! Faults are put in on purpose. Tests of rollouts and of servers have them from here, hence the paths of the files.

/// Requests and answers.
#[path = "fake/http.rs"]
mod http;

/// What is behind a sandbox: namespaces on this machine.
#[path = "fake/machine.rs"]
mod machine;

/// E2B's control plane and envd.
#[path = "fake/e2b.rs"]
mod e2b;

/// Templates that are built at E2B.
#[path = "fake/templates.rs"]
mod templates;

/// Hugging Face's Jobs, their proxy, and the program in them.
#[path = "fake/huggingface.rs"]
mod huggingface;

pub use e2b::KEY as E2B_KEY;
pub use huggingface::TOKEN as HF_TOKEN;

use dressage_sandbox::{AgentUser, E2bAccess, HuggingFaceAccess, Providers};
use dressage_wire::ids::SandboxId;
use http::{Out, Request};
use machine::Image;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// The base image whose second step fails.
pub const FAILING: &str = "an-image-that-fails";

/// The base image of a build without an end.
#[allow(dead_code, reason = "tests of servers ask it")]
pub const ENDLESS: &str = "an-image-without-an-end";

/// What happens to a request whose first line has this in it, instead of what it asks for or after it.
#[derive(Clone, Debug)]
pub struct Fault {
    pub names: &'static str,
    pub times: usize,
    pub does: Does,
}

#[derive(Clone, Debug)]
pub enum Does {
    /// It is refused.
    Refuse(u16, &'static str),
    /// It is dropped before it is read.
    Drop,
    /// It is done, and the answer breaks off after so many bytes.
    Cut(usize),
}

/// Both providers at one address.
pub struct Fake {
    pub url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    e2b: e2b::E2b,
    templates: templates::Templates,
    huggingface: huggingface::HuggingFace,
    faults: Mutex<Vec<Fault>>,
    asked: Mutex<Vec<String>>,
}

impl Fake {
    /// On a thread of its own: tests block theirs.
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<State>::default();
        let (serving, own_url) = (Arc::clone(&state), url.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                // Ends with its process.
                while let Ok((connection, _)) = listener.accept().await {
                    let (state, url) = (Arc::clone(&serving), own_url.clone());
                    tokio::spawn(async move {
                        // Whoever hangs up is not answered.
                        let _ = state.serve(connection, &url).await;
                    });
                }
            });
        });
        Self { url, state }
    }

    pub fn providers(&self) -> Providers {
        Self::providers_at(&self.url)
    }

    /// Those that another process plays.
    pub fn providers_at(url: &str) -> Providers {
        Providers {
            e2b: E2bAccess {
                api_key: Some(E2B_KEY.to_owned().into()),
                api_url: Some(url.to_owned()),
                sandbox_url: Some(url.to_owned()),
                ..E2bAccess::default()
            },
            huggingface: HuggingFaceAccess {
                token: Some(HF_TOKEN.to_owned().into()),
                endpoint: Some(url.to_owned()),
                ..HuggingFaceAccess::default()
            },
            ..Providers::default()
        }
    }

    pub fn fault(&self, names: &'static str, times: usize, does: Does) {
        self.state
            .faults
            .lock()
            .unwrap()
            .push(Fault { names, times, does });
    }

    /// How often something was asked for that has all of these in it: method, path, and the path of a file that is read or written.
    pub fn asked(&self, names: &[&str]) -> usize {
        let asked = self.state.asked.lock().unwrap();
        asked
            .iter()
            .filter(|line| names.iter().all(|name| line.contains(name)))
            .count()
    }

    /// An image at Hugging Face, as it comes of a folder that `dressage template context` has written.
    pub fn build_image(&self, name: &str, folder: &Path) {
        let mut image = Image::default();
        for entry in std::fs::read_dir(folder.join("dressage")).unwrap() {
            let archive = std::fs::read(entry.unwrap().path()).unwrap();
            image
                .layers
                .push((String::new(), "/opt/dressage".into(), archive.into()));
        }
        let images = &self.state.huggingface.images;
        images.lock().unwrap().insert(name.to_owned(), image);
    }

    /// Images of both like another, after a script that root runs in it.
    pub fn derive_image(&self, name: &str, from: &str, script: &str) {
        for images in [&self.state.e2b.images, &self.state.huggingface.images] {
            let mut images = images.lock().unwrap();
            if let Some(mut image) = images.get(from).cloned() {
                image.scripts.push(script.to_owned());
                images.insert(name.to_owned(), image);
            }
        }
    }

    /// Sandboxes that live, of both.
    pub fn living(&self) -> usize {
        self.state.e2b.living() + self.state.huggingface.living()
    }

    /// Snapshots that are kept.
    pub fn snapshots(&self) -> usize {
        self.state.e2b.snapshots()
    }

    /// The headers by which a port of a sandbox at E2B is reached.
    pub fn headers_for(sandbox: SandboxId, port: u16) -> String {
        format!(
            "e2b-sandbox-id: i{sandbox}\r\ne2b-sandbox-port: {port}\r\n{}\r\n",
            e2b::for_ports()
        )
    }

    /// The secrets that relays at E2B were given, in this order.
    pub fn relay_secrets(&self) -> Vec<String> {
        self.state.e2b.relay_secrets()
    }

    /// They end, as after their lifetime.
    pub fn expire(&self) {
        self.state.e2b.expire();
        self.state.huggingface.expire();
    }
}

impl State {
    async fn serve(&self, connection: tokio::net::TcpStream, url: &str) -> std::io::Result<()> {
        let (request, mut out) = Request::read(connection).await?;
        let line = format!("{} {}", request.method, request.path);
        let file = request.query("path").unwrap_or_default();
        self.asked.lock().unwrap().push(format!("{line} {file}"));
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            let found = faults
                .iter_mut()
                .find(|fault| fault.times > 0 && line.contains(fault.names));
            found.map(|fault| {
                fault.times -= 1;
                fault.does.clone()
            })
        };
        match fault {
            Some(Does::Refuse(status, body)) => return out.answer(status, body.as_bytes()).await,
            Some(Does::Drop) => return Ok(()),
            Some(Does::Cut(bytes)) => out.cut_after(bytes),
            None => {}
        }
        self.route(request, out, url).await
    }

    async fn route(&self, request: Request, out: Out, url: &str) -> std::io::Result<()> {
        if request.path.starts_with("/api/") || request.path.starts_with("/__jobs__/") {
            self.huggingface.serve(request, out, url).await
        } else if templates::is_for(&request) {
            self.templates.serve(request, out, url, &self.e2b.images).await
        } else {
            self.e2b.serve(request, out).await
        }
    }
}

/// The same providers, but where the environment names others (`DRESSAGE_TEST_E2B_URL`, `DRESSAGE_TEST_HF_URL`): emulators, or
/// deployments.
pub fn named(mut providers: Providers) -> Providers {
    if let Ok(url) = std::env::var("DRESSAGE_TEST_E2B_URL") {
        providers.e2b = E2bAccess {
            api_key: Some("e2b_test".to_owned().into()),
            api_url: Some(url.clone()),
            sandbox_url: Some(url),
            // An emulator's accounts may be this machine's.
            agent_user: Some(AgentUser::Default),
            ..E2bAccess::default()
        };
    }
    if let Ok(url) = std::env::var("DRESSAGE_TEST_HF_URL") {
        providers.huggingface = HuggingFaceAccess {
            token: Some("hf_test".to_owned().into()),
            endpoint: Some(url),
            ..HuggingFaceAccess::default()
        };
    }
    providers
}
