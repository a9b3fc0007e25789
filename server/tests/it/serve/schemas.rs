use super::client::Sent;
use super::hold::{exec, finish, held};
use super::server::Server;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// The schemas of an OpenAPI document.
struct Schemas(Value);

/// The members that schemas tell of; `None` where any may be there.
type Members = Option<BTreeSet<String>>;

impl Schemas {
    fn of(server: &Server) -> Self {
        Self(server.get("/openapi.json").expect(200).json())
    }

    /// What a GET is answered with.
    fn content(&self, path: &str) -> &Value {
        let answers = &self.0["paths"][path]["get"]["responses"]["200"]["content"];
        answers.as_object().unwrap().values().next().unwrap()
    }

    fn named(&self, name: &str) -> &Value {
        &self.0["components"]["schemas"][name]
    }

    /// Holds a value against a schema. A member that the schema does not tell of is wrong as well.
    #[track_caller]
    fn hold(&self, schema: &Value, value: &Value, what: &str) {
        if let Err(problem) = self.whole(schema, value) {
            panic!("{what}{problem}: {value:#}");
        }
    }

    fn whole(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let told = self.members(schema, value)?;
        let (Some(told), Some(table)) = (told, value.as_object()) else {
            return Ok(());
        };
        match table.keys().find(|key| !told.contains(*key)) {
            Some(untold) => Err(format!(".{untold} is in no schema")),
            None => Ok(()),
        }
    }

    fn members(&self, schema: &Value, value: &Value) -> Result<Members, String> {
        if let Some(reference) = schema["$ref"].as_str() {
            return self.members(self.0.pointer(&reference[1..]).unwrap(), value);
        }
        let mut told = BTreeSet::new();
        let mut add = |members: Members| members.map(|members| told.extend(members));
        for part in list(schema, "allOf") {
            if add(self.members(part, value)?).is_none() {
                return Ok(None);
            }
        }
        let forms = list(schema, "oneOf");
        if !forms.is_empty() {
            let (mut fit, mut problems) = (Vec::new(), Vec::new());
            for form in forms {
                match self.members(form, value) {
                    Ok(members) => fit.push(members),
                    Err(problem) => problems.push(problem),
                }
            }
            match (fit.pop(), fit.is_empty()) {
                (Some(members), true) => {
                    if add(members).is_none() {
                        return Ok(None);
                    }
                }
                (None, _) => return Err(format!(" is of no form: {}", problems.join("; "))),
                _ => return Err(" is of two forms".to_owned()),
            }
        }
        is_of_type(schema, value)?;
        if let Some(words) = schema["enum"].as_array()
            && !words.contains(value)
        {
            return Err(format!(" is none of {words:?}"));
        }
        let first = list(schema, "prefixItems");
        for (place, item) in value.as_array().into_iter().flatten().enumerate() {
            let of_item = first.get(place).unwrap_or(&schema["items"]);
            if of_item.is_object() {
                self.whole(of_item, item)
                    .map_err(|problem| format!("[{place}]{problem}"))?;
            }
        }
        let Some(table) = value.as_object() else {
            return Ok(Some(told));
        };
        for name in list(schema, "required") {
            if !table.contains_key(name.as_str().unwrap()) {
                return Err(format!(" lacks {name}"));
            }
        }
        let properties = schema["properties"].as_object();
        for (name, of_member) in properties.into_iter().flatten() {
            if let Some(member) = table.get(name) {
                self.whole(of_member, member)
                    .map_err(|problem| format!(".{name}{problem}"))?;
            }
        }
        told.extend(properties.into_iter().flat_map(Map::keys).cloned());
        let is_composed = schema["allOf"].is_array() || schema["oneOf"].is_array();
        if properties.is_none() && !is_composed {
            // A table with whatever keys.
            for (name, member) in table
                .iter()
                .filter(|_| schema["additionalProperties"].is_object())
            {
                self.whole(&schema["additionalProperties"], member)
                    .map_err(|problem| format!(".{name}{problem}"))?;
            }
            return Ok(None);
        }
        Ok(Some(told))
    }
}

fn list<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema[key].as_array().map_or(&[], Vec::as_slice)
}

fn is_of_type(schema: &Value, value: &Value) -> Result<(), String> {
    let types = match &schema["type"] {
        Value::String(_) => std::slice::from_ref(&schema["type"]),
        Value::Array(types) => types,
        _ => return Ok(()),
    };
    let is = |word: &Value| match word.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    if !types.iter().any(is) {
        return Err(format!(" is not of type {types:?}"));
    }
    match (schema["minimum"].as_f64(), value.as_f64()) {
        (Some(minimum), Some(number)) if number < minimum => Err(format!(" is under {minimum}")),
        _ => Ok(()),
    }
}

/// Items of a list in an example.
const LIST_MAX: usize = 3;

/// Characters of a text in an example.
const TEXT_MAX: usize = 120;

/// Examples are answers that were recorded; with `UPDATE_EXAMPLES` set, this run's are.
fn record(name: &str, answer: &Value) {
    if std::env::var_os("UPDATE_EXAMPLES").is_some() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rest/examples");
        std::fs::write(folder.join(name), format!("{answer:#}\n")).unwrap();
    }
}

/// An answer whose long lists and texts are cut.
fn short(answer: &Value) -> Value {
    match answer {
        Value::Array(items) => items.iter().take(LIST_MAX).map(short).collect(),
        Value::Object(table) => table
            .iter()
            .map(|(key, value)| (key.clone(), short(value)))
            .collect(),
        Value::String(text) if text.chars().count() > TEXT_MAX => {
            Value::String(text.chars().take(TEXT_MAX).chain(['…']).collect())
        }
        other => other.clone(),
    }
}

#[test]
fn what_was_recorded_is_of_the_types_that_the_document_names() {
    let (server, id) = held(json!({}));
    let schemas = Schemas::of(&server);
    exec(&server, &id, json!({"command": "echo said"})).expect(200);
    finish(&server, &id, json!({"reward": 1.0})).expect(202);
    let events: Vec<Sent> = server.events(&id).collect();
    for sent in &events {
        schemas.hold(schemas.named("RolloutEvent"), &sent.data, &sent.event);
    }
    let told: BTreeSet<_> = events.iter().map(|sent| sent.event.as_str()).collect();
    let kinds = list(schemas.named("Event"), "oneOf").iter();
    let kinds: BTreeSet<_> = kinds
        .map(|kind| kind["properties"]["type"]["enum"][0].as_str().unwrap())
        .collect();
    assert_eq!(told, kinds, "an event of each kind was told and looked at");
    let ended = events.iter().find(|sent| sent.event == "call_ended").unwrap();
    record(
        "event.json",
        &json!({"id": ended.id, "event": ended.event, "data": ended.data.to_string()}),
    );

    server.ended(&id);
    for (path, query, example) in [
        ("/api/v1/rollouts/{id}", "", None),
        ("/api/v1/rollouts", "", None),
        ("/api/v1/rollouts/{id}/calls", "", Some("calls.json")),
        ("/api/v1/rollouts/{id}/calls/{index}", "", Some("turn.json")),
        ("/api/v1/rollouts/{id}/trajectory", "", Some("native.json")),
        (
            "/api/v1/rollouts/{id}/trajectory",
            "?format=training",
            Some("training.json"),
        ),
    ] {
        let target = path.replace("{id}", &id).replace("{index}", "1") + query;
        let answer = server.get(&target).expect(200).json();
        schemas.hold(&schemas.content(path)["schema"], &answer, &target);
        if let Some(name) = example {
            record(name, &short(&answer));
        }
    }
}

#[test]
fn examples_are_of_the_types_that_they_are_examples_of() {
    let schemas = Schemas::of(&Server::plain());
    let mut compared = BTreeSet::new();
    for (path, methods) in schemas.0["paths"].as_object().unwrap() {
        if methods["get"]["responses"]["200"]["content"].is_null() {
            continue;
        }
        let content = schemas.content(path);
        let several = content["examples"].as_object().into_iter().flat_map(Map::values);
        let examples = several
            .map(|example| &example["value"])
            .chain(content.get("example"));
        for example in examples {
            schemas.hold(&content["schema"], example, path);
            compared.insert(path.as_str());
            if content["schema"]["$ref"] == "#/components/schemas/ServerSentEvent" {
                let event = serde_json::from_str(example["data"].as_str().unwrap()).unwrap();
                schemas.hold(schemas.named("RolloutEvent"), &event, path);
            }
        }
    }
    for rest in ["calls", "calls/{index}", "trajectory", "events"] {
        let path = format!("/api/v1/rollouts/{{id}}/{rest}");
        assert!(compared.contains(path.as_str()), "{path}: {compared:?}");
    }
}
