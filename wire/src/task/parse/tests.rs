use super::*;
use crate::task::{FileContent, Limits, NetworkPolicy, RewardRange, SnapshotWhen, VerifyIn, VerifyWhen};
use std::collections::BTreeSet;

fn toml_error(text: &str) -> TaskError {
    Task::from_toml(text).unwrap_err()
}

fn json_error(text: &str) -> TaskError {
    Task::from_json(text.as_bytes()).unwrap_err()
}

#[test]
fn a_task_with_everything_is_read_the_same_from_toml_and_json() {
    let toml = r#"
        id = "everything"
        instruction = "Do it."
        turns = ["Once more."]
        setup = ["true"]
        verify = ["test -f a"]
        env = { A = "1" }
        image = "debian:12"
        user = "root"
        network = "open"
        verify_when = "always"
        verify_in = "fresh"
        outputs = [".", "/home/user/results"]
        snapshot = "after_setup"

        [files]
        "a.txt" = "text"
        "b.bin" = { base64 = "/wD+" }

        [agent]
        name = "opencode"
        enabled_tools = ["write"]
        config.compaction.auto = true
        mcp_servers.local = { command = "server", args = ["-v"], env = { A = "1" } }
        mcp_servers.remote = { url = "http://127.0.0.1:1/mcp", headers = { A = "1" } }

        [sampling]
        temperature = 1
        seed = 7

        [limits]
        agent_timeout_s = 2.5
        max_calls = 3

        [reward]
        min = -1

        [metadata]
        day = 2026-11-29
    "#;
    let json = r#"{"id": "everything", "instruction": "Do it.", "turns": ["Once more."], "setup": ["true"], "verify": ["test -f a"],
        "env": {"A": "1"}, "image": "debian:12", "user": "root", "network": "open", "verify_when": "always",
        "verify_in": "fresh", "outputs": [".", "/home/user/results"], "snapshot": "after_setup",
        "files": {"a.txt": "text", "b.bin": {"base64": "/wD+"}},
        "agent": {"name": "opencode", "enabled_tools": ["write"], "config": {"compaction": {"auto": true}},
            "mcp_servers": {"local": {"command": "server", "args": ["-v"], "env": {"A": "1"}},
                "remote": {"url": "http://127.0.0.1:1/mcp", "headers": {"A": "1"}}}},
        "sampling": {"temperature": 1, "seed": 7}, "limits": {"agent_timeout_s": 2.5, "max_calls": 3},
        "reward": {"min": -1}, "metadata": {"day": "2026-11-29"}}"#;
    let task = Task::from_toml(toml).unwrap();
    assert_eq!(task, Task::from_json(json.as_bytes()).unwrap());
    assert_eq!(task.network, NetworkPolicy::Open);
    assert_eq!(
        (task.image.as_deref(), task.user.as_deref()),
        (Some("debian:12"), Some("root"))
    );
    assert_eq!(task.verify_when, VerifyWhen::Always);
    assert_eq!(task.verify_in, Some(VerifyIn::Fresh));
    assert_eq!(task.outputs, [".", "/home/user/results"]);
    assert_eq!(task.snapshot, Some(SnapshotWhen::AfterSetup));
    assert_eq!(task.files["b.bin"].bytes().unwrap(), [0xff, 0, 0xfe].as_slice());
    assert_eq!(task.files["a.txt"], FileContent::Text("text".into()));
    assert_eq!(task.reward, RewardRange { min: -1.0, max: 1.0 });
    assert_eq!(
        task.limits,
        Limits {
            agent_timeout_s: 2.5,
            max_calls: Some(3),
            ..Limits::default()
        }
    );
    assert_eq!(task.agent.disabled_tools, None);
    assert_eq!(task.agent.mcp_servers["local"].args, ["-v"]);
    let again = serde_json::to_vec(&task).unwrap();
    assert_eq!(Task::from_json(&again).unwrap(), task);
}

#[test]
fn a_network_of_some_hosts_is_read_from_toml_and_json_and_from_the_command_line() {
    let toml =
        "instruction = 'x'\nnetwork = { allow = ['Index.Example', '*.example.org:8443', '10.0.0.1:80'] }";
    let json = r#"{"instruction": "x", "network": {"allow": ["index.example", "*.example.org:8443", "10.0.0.1:80"]}}"#;
    let task = Task::from_toml(toml).unwrap();
    assert_eq!(task, Task::from_json(json.as_bytes()).unwrap());
    let text = "allow:index.example,*.example.org:8443,10.0.0.1:80";
    assert_eq!(task.network, text.parse().unwrap());
    assert_eq!(task.network.to_string(), text);
    let again = serde_json::to_vec(&task).unwrap();
    assert_eq!(Task::from_json(&again).unwrap(), task);
    for text in ["none", "open"] {
        let network: NetworkPolicy = text.parse().unwrap();
        assert_eq!(network.to_string(), text);
    }
    for (text, told) in [
        ("shut", "`shut` is neither none, open nor allow:HOST,..."),
        ("allow:", "`` is neither an address nor the name of a host"),
        (
            "allow:a.org,,b.org",
            "`` is neither an address nor the name of a host",
        ),
        ("allow:*.org", "`*.org` would allow a whole top-level domain"),
    ] {
        let error = text.parse::<NetworkPolicy>().unwrap_err().to_string();
        assert!(error.starts_with(told), "{error}");
    }
}

#[test]
fn a_network_that_cannot_be_is_refused_with_its_place() {
    let many: Vec<String> = (0..257).map(|number| format!("'{number}.example.org'")).collect();
    let many = format!("{{ allow = [{}] }}", many.join(", "));
    for (network, told) in [
        ("{ allow = [] }", "`network.allow` names no host"),
        (
            many.as_str(),
            "`network.allow` names 257 hosts, over the limit of 256",
        ),
        (
            "{ allow = ['a b'] }",
            "`a b` is neither an address nor the name of a host",
        ),
        ("{ allow = [3] }", "`network"),
        ("{ deny = ['a.org'] }", "`network"),
        ("'shut'", "`network"),
    ] {
        let error = toml_error(&format!("instruction = 'x'\nnetwork = {network}")).to_string();
        assert!(error.contains(told), "{network}: {error}");
    }
}

#[test]
fn an_unknown_key_is_named_with_the_nearest() {
    for (text, path, nearest) in [
        ("instruction = 'x'\nverfy = []", "verfy", Some("verify")),
        ("instructions = 'x'", "instructions", Some("instruction")),
        (
            "instruction = 'x'\n[limits]\nagent_timeout = 3",
            "limits.agent_timeout",
            Some("limits.agent_timeout_s"),
        ),
        (
            "instruction = 'x'\nagent_timeout_s = 3",
            "agent_timeout_s",
            Some("limits.agent_timeout_s"),
        ),
        (
            "instruction = 'x'\ntemperature = 1",
            "temperature",
            Some("sampling.temperature"),
        ),
        (
            "instruction = 'x'\n[agent]\nsystemprompt = ''",
            "agent.systemprompt",
            Some("agent.system_prompt"),
        ),
        ("instruction = 'x'\nqqq = 1", "qqq", None),
    ] {
        let error = toml_error(text);
        let TaskError::UnknownKey {
            path: found,
            nearest: near,
        } = &error
        else {
            panic!("{text}: {error}")
        };
        assert_eq!((found.as_str(), near.as_deref()), (path, nearest), "{text}");
        assert!(error.to_string().contains(path));
        assert!(error.hint().unwrap().contains(nearest.unwrap_or("instruction")));
    }
}

#[test]
fn a_wrong_type_is_told_with_its_place() {
    for (text, path, expected) in [
        (r#"{"instruction": 7}"#, "instruction", "a string"),
        (r#"{"instruction": "x", "setup": "true"}"#, "setup", "a sequence"),
        (
            r#"{"instruction": "x", "verify": ["a", 2]}"#,
            "verify[1]",
            "a string",
        ),
        (
            r#"{"instruction": "x", "limits": {"max_calls": -1}}"#,
            "limits.max_calls",
            "u64",
        ),
        (
            r#"{"instruction": "x", "limits": {"agent_timeout_s": "10"}}"#,
            "limits.agent_timeout_s",
            "f64",
        ),
        (r#"{"instruction": "x", "network": "full"}"#, "network", "`open`"),
        (
            r#"{"instruction": "x", "files": {"a": 1}}"#,
            "files.a",
            "text, or a table",
        ),
        (r#"{"instruction": "x", "limits": []}"#, "limits", "a table"),
    ] {
        let error = json_error(text);
        let TaskError::WrongType { path: found, message } = &error else {
            panic!("{text}: {error}")
        };
        assert_eq!(found, path, "{text}");
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn no_instruction_and_one_of_10_mb_are_errors() {
    for text in ["", "setup = []", "instruction = ''", "instruction = \" \\n\""] {
        assert!(matches!(toml_error(text), TaskError::NoInstruction), "{text:?}");
    }
    let long = serde_json::json!({ "instruction": "x".repeat(10_000_000) });
    let error = Task::from_value(long).unwrap_err();
    assert!(
        matches!(
            error,
            TaskError::InstructionTooLong {
                bytes: 10_000_000,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("`files`"));
}

#[test]
fn limits_that_are_no_limits_are_errors() {
    for value in ["nan", "inf", "-1.0", "0.0", "1e300"] {
        let error = toml_error(&format!("instruction = 'x'\n[limits]\nagent_timeout_s = {value}"));
        let TaskError::BadValue { path, .. } = &error else {
            panic!("{value}: {error}")
        };
        assert_eq!(path, "limits.agent_timeout_s", "{value}");
    }
    for (line, path) in [
        ("limits.cpus = 0.0", "limits.cpus"),
        ("limits.memory_mb = 1", "limits.memory_mb"),
        ("limits.pids = 0", "limits.pids"),
        ("limits.max_calls = 0", "limits.max_calls"),
        ("sampling.top_p = 0.0", "sampling.top_p"),
        ("sampling.top_p = 1.5", "sampling.top_p"),
        ("sampling.temperature = -0.1", "sampling.temperature"),
        ("sampling.top_k = -2", "sampling.top_k"),
        ("reward = { min = 1.0, max = 0.0 }", "reward"),
        ("files.'../up' = ''", "files.\"../up\""),
        ("files.'dir/' = ''", "files.\"dir/\""),
        ("files.'a' = { base64 = '!' }", "files.\"a\""),
        ("verify_files.'a' = { source = 'b' }", "verify_files.\"a\""),
        ("env.'A=B' = ''", "env.\"A=B\""),
        ("verify = [\"a\\u0000b\"]", "verify[0]"),
        ("agent.name = ''", "agent.name"),
        ("outputs = ['']", "outputs[0]"),
        ("outputs = ['a', '../b']", "outputs[1]"),
        ("outputs = ['//./']", "outputs[0]"),
        ("outputs = [\"a\\u0000b\"]", "outputs[0]"),
        ("turns = ['go on', ' ']", "turns[1]"),
        ("agent.mcp_servers.a = {}", "agent.mcp_servers.\"a\""),
        (
            "agent.mcp_servers.a = { command = 'x', url = 'http://x' }",
            "agent.mcp_servers.\"a\"",
        ),
        (
            "agent.mcp_servers.a = { url = 'file:///x' }",
            "agent.mcp_servers.\"a\"",
        ),
        (
            "agent.mcp_servers.'a b' = { command = 'x' }",
            "agent.mcp_servers.\"a b\"",
        ),
        (
            "agent.mcp_servers.a = { command = 'x', env = { 'A=B' = '' } }",
            "agent.mcp_servers.\"a\".env.\"A=B\"",
        ),
    ] {
        let error = toml_error(&format!("instruction = 'x'\n{line}"));
        let TaskError::BadValue { path: found, .. } = &error else {
            panic!("{line}: {error}")
        };
        assert_eq!(found, path, "{line}");
    }
}

#[test]
fn text_that_is_no_toml_or_json_or_no_table_is_an_error_with_its_line() {
    let error = toml_error("instruction = 'x'\nsetup = [");
    assert!(error.to_string().contains("line 2"), "{error}");
    assert!(matches!(json_error("{"), TaskError::Json(_)));
    assert!(matches!(
        json_error(r#"{"instruction": "x", "limits": {"cpus": 1e999}}"#),
        TaskError::Json(_)
    ));
    assert!(matches!(json_error("[]"), TaskError::NotATable));
}

#[test]
fn the_tables_of_known_keys_are_those_of_the_types() {
    for (path, keys) in KEYS {
        let inner = serde_json::json!({ "no such key": 0 });
        let value = match *path {
            "" => inner,
            path => serde_json::json!({ path: inner }),
        };
        let message = serde_json::from_value::<Task>(value).unwrap_err().to_string();
        let (_, expected) = message
            .split_once("expected one of")
            .or(message.split_once("expected"))
            .unwrap();
        let of_type: BTreeSet<&str> = expected.split('`').skip(1).step_by(2).collect();
        assert_eq!(of_type, keys.iter().copied().collect(), "{path}: {message}");
    }
}

#[test]
fn every_key_of_a_task_is_told_in_docs_tasks() {
    let page = include_str!("../../../../docs/tasks.md");
    for (table, keys) in KEYS {
        let told = match (*table, page.find(&format!("### `[{table}]`"))) {
            ("", _) => page,
            (_, Some(at)) => &page[at..],
            (table, None) => panic!("docs/tasks.md says nothing of [{table}]"),
        };
        for key in *keys {
            let in_page = told.contains(&format!("`{key}`")) || page.contains(&format!("`[{key}]`"));
            assert!(in_page, "docs/tasks.md says nothing of `{key}` in [{table}]");
        }
    }
}

#[test]
fn an_image_is_named_or_built_and_its_user_is_one() {
    let error = |keys: &str| toml_error(&format!("instruction = \"x\"\n{keys}")).to_string();
    let both = error("image = \"a\"\ndockerfile = \"FROM b\"");
    assert_eq!(both, "`dockerfile` and `image` cannot both be given");
    assert_eq!(error("image = \"\""), "`image` is empty");
    assert_eq!(error("dockerfile = \" \""), "`dockerfile` is empty, or no text");
    for user in ["", "a b", "a:b", "-a", "ä"] {
        let message = error(&format!("user = \"{user}\""));
        assert_eq!(message, "`user` is neither a name nor a number of a user");
    }
}

#[test]
fn a_line_that_is_wrong_is_quoted_in_part() {
    let text = format!("instruction = [{}", "a".repeat(1_000_000));
    let said = Task::unchecked_from_toml(&text).unwrap_err().to_string();
    assert!(said.contains("line 1, column") && said.contains('…'), "{said}");
    assert!(said.len() < 2_000, "{} bytes", said.len());
}
