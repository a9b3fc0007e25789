use super::e2b::KEY;
use super::http::{Out, Request};
use super::machine::{Image, Images};
use super::{ENDLESS, FAILING};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

/// What the address of an upload is signed with, and the header that is wanted with it.
const SIGNATURE: &str = "signed-for-an-hour";
const HEADER: (&str, &str) = ("x-ms-blob-type", "BlockBlob");

/// Lines of a log that are told at once.
const LINES: usize = 2;

/// Templates that are built at E2B, as its SDK 2.63.0 asks for them.
#[derive(Default)]
pub struct Templates {
    files: Mutex<BTreeMap<String, Bytes>>,
    builds: Mutex<BTreeMap<String, Build>>,
}

#[derive(Default)]
struct Build {
    name: String,
    lines: Vec<String>,
    /// How often it was looked at.
    looks: usize,
    fails: bool,
    is_endless: bool,
}

/// Whether it is asked of templates.
pub fn is_for(request: &Request) -> bool {
    let path: Vec<&str> = request.path.split('/').skip(1).collect();
    matches!(
        path.as_slice(),
        ["v3", "templates"]
            | ["v2", "templates", _, "builds", _]
            | ["templates", _, "files" | "builds", ..]
            | ["__upload__", _]
    )
}

impl Templates {
    pub async fn serve(&self, request: Request, mut out: Out, url: &str, images: &Images) -> io::Result<()> {
        let path: Vec<&str> = request.path.split('/').skip(1).collect();
        if let ("PUT", ["__upload__", hash]) = (request.method.as_str(), path.as_slice()) {
            let signed = request.query("signature") == Some(SIGNATURE);
            // Storage takes no body in chunks, and is no place for the key.
            let plain = request.header("content-length").is_some() && request.header("x-api-key").is_none();
            if !signed || !plain || request.header(HEADER.0) != Some(HEADER.1) {
                return out
                    .answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
                    .await;
            }
            self.files
                .lock()
                .unwrap()
                .insert((*hash).to_owned(), request.body.clone());
            return out.answer(200, b"").await;
        }
        if request.header("x-api-key") != Some(KEY) {
            return out
                .answer(401, br#"{"code":401,"message":"Invalid API key"}"#)
                .await;
        }
        let body = || serde_json::from_slice::<Value>(&request.body).unwrap();
        let (status, answer) = match (request.method.as_str(), path.as_slice()) {
            ("POST", ["v3", "templates"]) => (202, self.request(&body())),
            ("GET", ["templates", _, "files", hash]) => {
                let present = self.files.lock().unwrap().contains_key(*hash);
                let address = format!("{url}/__upload__/{hash}?signature={SIGNATURE}");
                let answer = match present {
                    true => json!({ "present": true }),
                    false => json!({ "present": false, "url": address, "headers": { HEADER.0: HEADER.1 } }),
                };
                (201, answer)
            }
            ("POST", ["v2", "templates", _, "builds", build]) => {
                self.start(build, &body(), images);
                (202, Value::Null)
            }
            ("GET", ["templates", template, "builds", build, "status"]) => {
                let offset = request.query("logsOffset").unwrap().parse().unwrap();
                (200, self.status(template, build, offset))
            }
            _ => (404, json!({ "code": 404, "message": "no route" })),
        };
        let answer = match answer {
            Value::Null => String::new(),
            answer => answer.to_string(),
        };
        out.answer(status, answer.as_bytes()).await
    }

    fn request(&self, body: &Value) -> Value {
        let mut builds = self.builds.lock().unwrap();
        let name = body["name"].as_str().unwrap().to_owned();
        let build = format!("b{}", builds.len() + 1);
        let answer = json!({
            "templateID": "t1", "buildID": build, "public": false, "names": [name], "tags": ["default"],
        });
        builds.insert(
            build,
            Build {
                name,
                ..Build::default()
            },
        );
        answer
    }

    fn start(&self, build: &str, body: &Value, images: &Images) {
        let mut builds = self.builds.lock().unwrap();
        let build = builds.get_mut(build).unwrap();
        let from = body["fromImage"].as_str().unwrap();
        build.lines.push(format!("[base] FROM {from}"));
        let mut image = Image::default();
        for (index, step) in body["steps"].as_array().unwrap().iter().enumerate() {
            let args: Vec<&str> = step["args"]
                .as_array()
                .unwrap()
                .iter()
                .map(|arg| arg.as_str().unwrap())
                .collect();
            let kind = step["type"].as_str().unwrap();
            build
                .lines
                .push(format!("\u{1b}[1m[builder {}]\u{1b}[0m {kind}", index + 1));
            match (kind, args.as_slice()) {
                ("COPY", [source, destination, "root", ""]) => {
                    let archive = self.files.lock().unwrap()[step["filesHash"].as_str().unwrap()].clone();
                    image
                        .layers
                        .push(((*source).to_owned(), (*destination).to_owned(), archive));
                }
                ("RUN", [script, "root"]) => image.scripts.push((*script).to_owned()),
                other => panic!("{other:?}"),
            }
        }
        build.fails = from == FAILING;
        build.is_endless = from == ENDLESS;
        if !build.fails {
            // An ordinary user of this machine can give nothing to root.
            if !super::machine::is_root() {
                image.scripts.clear();
            }
            images.lock().unwrap().insert(build.name.clone(), image);
        }
    }

    fn status(&self, template: &str, build: &str, offset: usize) -> Value {
        let mut builds = self.builds.lock().unwrap();
        let told = builds.get_mut(build).unwrap();
        told.looks += 1;
        let entries: Vec<Value> = told
            .lines
            .iter()
            .skip(offset)
            .take(LINES)
            .map(|line| json!({ "timestamp": "2026-11-30T00:00:00Z", "level": "info", "message": line }))
            .collect();
        // It is over before all of its log was told.
        let status = match (told.looks, told.fails) {
            _ if told.is_endless => "building",
            (1, _) => "building",
            (_, true) => "error",
            (_, false) => "ready",
        };
        let mut answer = json!({
            "templateID": template, "buildID": build, "status": status, "logs": [], "logEntries": entries,
        });
        if told.fails && status == "error" {
            answer["reason"] = json!({ "message": "failed to run command: exit status 1", "step": "2" });
        }
        answer
    }
}
