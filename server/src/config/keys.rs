/// A key of the file, for docs/configuration.md.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its table; `NAME` stands for any name.
    pub table: &'static str,
    /// Its name.
    pub name: &'static str,
    /// A value, as it would stand in the file.
    pub example: &'static str,
    /// What it sets, with its default.
    pub meaning: &'static str,
}

const fn key(table: &'static str, name: &'static str, example: &'static str, meaning: &'static str) -> Key {
    Key {
        table,
        name,
        example,
        meaning,
    }
}

/// The tables of the file, in the order of docs/configuration.md.
pub const TABLES: &[&str] = &[
    "defaults",
    "serve",
    "endpoints.NAME",
    "prices.MODEL",
    "sandboxes.docker",
    "sandboxes.e2b",
    "sandboxes.huggingface",
];

/// Every key. A test holds it against the types above.
pub const KEYS: &[Key] = &[
    key(
        "defaults",
        "endpoint",
        "\"vllm\"",
        "endpoint used without `--endpoint` and `--base-url`",
    ),
    key(
        "defaults",
        "sandbox",
        "\"local\"",
        "sandbox backend used without `--sandbox`; default `local`",
    ),
    key(
        "defaults",
        "verify_in",
        "\"fresh\"",
        "where tasks that do not say are verified: `same` is the agent's sandbox, `fresh` a second one; default `same`",
    ),
    key(
        "defaults",
        "snapshot",
        "\"after_setup\"",
        "whether what setup made is kept for rollouts that would run the same, where tasks do not say: `never` or `after_setup`; default `never`",
    ),
    key(
        "defaults",
        "concurrency",
        "4",
        "rollouts at once without `--concurrency`; default 4",
    ),
    key(
        "defaults",
        "warm",
        "{ local = 4 }",
        "sandboxes of a backend that are kept ready, like those that rollouts had before; DRESSAGE_WARM goes over it, then `--warm`, name by name; default none",
    ),
    key(
        "defaults",
        "warm_max_age_s",
        "600.0",
        "seconds after which a sandbox that was kept ready and not used ends, under DRESSAGE_WARM_MAX_AGE; default 600",
    ),
    key(
        "serve",
        "host",
        "\"127.0.0.1\"",
        "address that the server listens on; beyond loopback a key is needed, or `open`; default `127.0.0.1`",
    ),
    key(
        "serve",
        "port",
        "8000",
        "its port; 0 takes a free one; default 8000",
    ),
    key(
        "serve",
        "api_keys",
        "\"keys\"",
        "file with API keys, one a line; relative to this file; those of DRESSAGE_API_KEYS count as well",
    ),
    key(
        "serve",
        "open",
        "false",
        "answer without a key on an address beyond loopback; default `false`",
    ),
    key(
        "serve",
        "allow_hosts",
        "[\"gpu-7.example\"]",
        "host names that the server answers for besides loopback names; those of `--allow-host` count as well",
    ),
    key(
        "serve",
        "client_base_url",
        "\"listed\"",
        "endpoint URLs that callers may bring: `any`, `listed` (of the origin of an endpoint with a name), `none`; default `any` on loopback or with a key, else `none`",
    ),
    key(
        "serve",
        "allow_backends",
        "[\"process\"]",
        "backends without isolation from this machine's loopback that callers may choose; the default backend needs no word here",
    ),
    key(
        "serve",
        "allow_addresses",
        "[\"10.0.0.5:8080\"]",
        "addresses that are not public and that tasks may have in `network.allow`; those of `--allow-address` count as well",
    ),
    key(
        "serve",
        "tasks",
        "\"tasks\"",
        "folder of task files that are offered beside the ready-made tasks; relative to this file",
    ),
    key("serve", "queue", "10000", "rollouts that may wait; default 10000"),
    key(
        "serve",
        "backend_limits",
        "{ local = 8 }",
        "rollouts at once on a backend; `--backend-limit` goes over it, name by name",
    ),
    key(
        "serve",
        "endpoint_limits",
        "{ vllm = 32 }",
        "rollouts at once on an endpoint; `--endpoint-limit` goes over it, name by name",
    ),
    key(
        "serve",
        "max_sessions",
        "4",
        "OpenEnv sessions at once, under MAX_CONCURRENT_ENVS; default 4",
    ),
    key(
        "serve",
        "socket_ping_s",
        "20.0",
        "seconds between pings to an OpenEnv client's socket, which is closed when six in a row were not answered; default 20",
    ),
    key(
        "serve",
        "keep_abandoned",
        "false",
        "let a rollout go on whose OpenEnv client has gone; default `false`",
    ),
    key(
        "serve",
        "grace_s",
        "30.0",
        "seconds that rollouts may take to end when the server is stopped; default 30",
    ),
    key(
        "endpoints.NAME",
        "url",
        "\"https://gpu-7.example:8000/v1\"",
        "where it is; needed unless the catalogue knows it",
    ),
    key(
        "endpoints.NAME",
        "key_variable",
        "\"GPU_7_KEY\"",
        "environment variable that holds its key; without it, calls go without a key",
    ),
    key(
        "endpoints.NAME",
        "replicas",
        "[\"https://gpu-8.example:8000/v1\"]",
        "URLs of further servers with the same model; the calls of a rollout go to one of all, and to another where no connection to that one can be made",
    ),
    key(
        "endpoints.NAME",
        "model",
        "\"Qwen/Qwen3-8B\"",
        "model asked for, where `--model` names none",
    ),
    key(
        "endpoints.NAME",
        "headers",
        "{ x-team = \"rl\" }",
        "headers sent with every call",
    ),
    key(
        "endpoints.NAME",
        "ca_file",
        "\"/etc/ssl/our-ca.pem\"",
        "PEM file of certificates trusted besides the public ones; relative to this file",
    ),
    key(
        "endpoints.NAME",
        "proxy",
        "\"http://proxy.example:3128\"",
        "a proxy's URL, `environment` (HTTPS_PROXY and NO_PROXY; the default), or `none`",
    ),
    key(
        "endpoints.NAME",
        "connect_timeout_s",
        "10.0",
        "seconds for a connection to be there",
    ),
    key(
        "endpoints.NAME",
        "header_timeout_s",
        "600.0",
        "seconds from a request to the head of its reply",
    ),
    key(
        "endpoints.NAME",
        "idle_timeout_s",
        "300.0",
        "seconds between two pieces of a reply",
    ),
    key(
        "endpoints.NAME",
        "request_timeout_s",
        "1800.0",
        "seconds for a call as a whole",
    ),
    key(
        "endpoints.NAME",
        "sampling",
        "{ temperature = 0.7 }",
        "`temperature`, `top_p`, `top_k`, `min_p`, `presence_penalty`, `frequency_penalty`, `repetition_penalty`, \
         `seed`; under those of tasks and options",
    ),
    key(
        "endpoints.NAME",
        "capture",
        "\"stream\"",
        "`stream` asks as the agent asked; `buffer` never streams upstream and replays a stream to the agent; `auto` is the one of both that a probe of the endpoint advises; default `stream`",
    ),
    key(
        "endpoints.NAME",
        "disable_thinking",
        "true",
        "sends `chat_template_kwargs.enable_thinking = false`; default true for `vllm`, else false",
    ),
    key(
        "endpoints.NAME",
        "max_calls_at_once",
        "64",
        "calls at once, of all rollouts; more wait, and the agents that made them are kept waiting; default no limit",
    ),
    key(
        "endpoints.NAME",
        "max_calls_per_minute",
        "600",
        "calls begun within any minute, of all rollouts; more wait; default no limit",
    ),
    key(
        "prices.MODEL",
        "prompt",
        "0.4",
        "cost of a million tokens of prompts, in any currency; for `max_cost` of tasks",
    ),
    key(
        "prices.MODEL",
        "cached_prompt",
        "0.1",
        "cost of a million of these that the server had in its cache; default as `prompt`",
    ),
    key(
        "prices.MODEL",
        "completion",
        "1.6",
        "cost of a million sampled tokens",
    ),
    key(
        "sandboxes.docker",
        "host",
        "\"unix:///var/run/docker.sock\"",
        "the engine of containers, under DOCKER_HOST; default the socket of Docker or Podman on this machine",
    ),
    key(
        "sandboxes.docker",
        "image",
        "\"python:3.12\"",
        "image of containers whose rollout names none",
    ),
    key(
        "sandboxes.e2b",
        "domain",
        "\"e2b.example\"",
        "domain of a deployment of E2B, under E2B_DOMAIN; default `e2b.app`",
    ),
    key(
        "sandboxes.e2b",
        "api_url",
        "\"https://api.e2b.example\"",
        "URL of its control plane, under E2B_API_URL; default `https://api.` and the domain",
    ),
    key(
        "sandboxes.e2b",
        "sandbox_url",
        "\"https://sandbox.e2b.example\"",
        "one URL by which all of its sandboxes are reached, under E2B_SANDBOX_URL; default `https://sandbox.` and the domain",
    ),
    key(
        "sandboxes.e2b",
        "agent_user",
        "\"own\"",
        "`own`: agents are a user of their own, without sudo; `default`: that of the template, as setup and verify; default `own` where it can be had",
    ),
    key(
        "sandboxes.huggingface",
        "endpoint",
        "\"https://hub.example\"",
        "URL of a hub, under HF_ENDPOINT; default `https://huggingface.co`",
    ),
    key(
        "sandboxes.huggingface",
        "namespace",
        "\"my-organisation\"",
        "user or organisation that pays for the jobs; default: that of HF_TOKEN",
    ),
    key(
        "sandboxes.huggingface",
        "flavor",
        "\"cpu-upgrade\"",
        "kind of machine of each sandbox; default `cpu-basic`",
    ),
    key(
        "sandboxes.huggingface",
        "agent_user",
        "\"own\"",
        "`own`: agents are a user of their own, not root; `default`: that of the image, as setup and verify; default `own` where it can be had",
    ),
];

#[cfg(test)]
mod tests {
    use super::super::{
        Defaults, DockerConfig, E2bConfig, EndpointConfig, HuggingFaceConfig, PricesConfig, Serve,
    };
    use super::*;

    #[test]
    fn the_table_of_keys_is_what_the_types_know() {
        let listed = |table: &str| -> Vec<&str> {
            KEYS.iter()
                .filter(|key| key.table == table)
                .map(|key| key.name)
                .collect()
        };
        let known = |error: toml::de::Error| -> Vec<String> {
            error
                .message()
                .split('`')
                .skip(3)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(
            known(toml::from_str::<Defaults>("zzz = 1").unwrap_err()),
            listed("defaults")
        );
        assert_eq!(
            known(toml::from_str::<Serve>("zzz = 1").unwrap_err()),
            listed("serve")
        );
        assert_eq!(
            known(toml::from_str::<EndpointConfig>("zzz = 1").unwrap_err()),
            listed("endpoints.NAME")
        );
        assert_eq!(
            known(toml::from_str::<PricesConfig>("zzz = 1").unwrap_err()),
            listed("prices.MODEL")
        );
        assert_eq!(
            known(toml::from_str::<DockerConfig>("zzz = 1").unwrap_err()),
            listed("sandboxes.docker")
        );
        assert_eq!(
            known(toml::from_str::<E2bConfig>("zzz = 1").unwrap_err()),
            listed("sandboxes.e2b")
        );
        assert_eq!(
            known(toml::from_str::<HuggingFaceConfig>("zzz = 1").unwrap_err()),
            listed("sandboxes.huggingface")
        );
    }

    #[test]
    fn every_key_is_of_a_table_that_is_shown() {
        for key in KEYS {
            assert!(TABLES.contains(&key.table), "{}.{}", key.table, key.name);
        }
    }
}
