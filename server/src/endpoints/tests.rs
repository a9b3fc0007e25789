use super::*;
use crate::config::Config;
use crate::environment::Environment;
use dressage_tap::endpoint::{Endpoint, ProxyPolicy};
use dressage_wire::task::CaptureMode;
use secrecy::ExposeSecret;
use std::time::Duration;

fn choice(name: &str) -> Choice<'_> {
    Choice {
        name: Some(name),
        ..Choice::default()
    }
}

fn server(choice: Choice<'_>, config: &str, environment: &Environment) -> Endpoint {
    match resolve(choice, &toml::from_str(config).unwrap(), environment).unwrap() {
        Chosen::Server(resolved) => *resolved,
        Chosen::Demo => panic!("the scripted model was chosen"),
    }
}

fn refusal(choice: Choice<'_>, config: &str, environment: &Environment) -> (String, String) {
    let error = resolve(choice, &toml::from_str(config).unwrap(), environment).unwrap_err();
    (error.to_string(), error.hint().unwrap_or_default())
}

fn url_and_model(resolved: &Endpoint) -> (&str, &str) {
    (&resolved.base_url, resolved.model.as_deref().unwrap_or_default())
}

fn key(resolved: &Endpoint) -> Option<&str> {
    resolved.api_key.as_ref().map(ExposeSecret::expose_secret)
}

#[test]
fn vllm_has_opencode_envs_defaults_and_gets_v1_appended() {
    let environment = Environment::of(&[("VLLM_URL", "http://gpu:8000/")], &[]);
    let resolved = server(choice("vllm"), "", &environment);
    assert_eq!(resolved.base_url, "http://gpu:8000/v1");
    assert_eq!(key(&resolved), Some("intercepted"));
    assert_eq!(resolved.model.as_deref(), Some("Qwen/Qwen3.5-4B"));
    assert!(resolved.disable_thinking);
}

#[test]
fn openai_and_hf_router_have_opencode_envs_defaults() {
    let environment = Environment::of(&[("OPENAI_API_KEY", "a"), ("HF_ROUTER_API_KEY", "b")], &[]);
    let openai = server(choice("openai"), "", &environment);
    assert_eq!(
        url_and_model(&openai),
        ("https://api.openai.com/v1", "gpt-4o-mini")
    );
    assert_eq!((key(&openai), openai.disable_thinking), (Some("a"), false));
    let router = server(choice("hf_router"), "", &environment);
    assert_eq!(
        url_and_model(&router),
        (
            "https://router.huggingface.co/v1",
            "Qwen/Qwen3-4B-Instruct-2507:nscale"
        )
    );
    assert_eq!(key(&router), Some("b"));
}

#[test]
fn an_argument_goes_over_the_environment_and_that_over_the_file() {
    let environment = Environment::of(
        &[
            ("OPENAI_API_KEY", "a"),
            ("OPENAI_MODEL", "env"),
            ("OPENAI_BASE_URL", "http://env/v1"),
        ],
        &[],
    );
    let config = "[endpoints.openai]\nurl = \"http://file/v1\"\nmodel = \"file\"";
    let by_environment = server(choice("openai"), config, &environment);
    assert_eq!(url_and_model(&by_environment), ("http://env/v1", "env"));
    let given = Choice {
        model: Some("given"),
        ..choice("openai")
    };
    assert_eq!(
        server(given, config, &environment).model.as_deref(),
        Some("given")
    );
    let by_file = server(
        choice("openai"),
        config,
        &Environment::of(&[("OPENAI_API_KEY", "a")], &[]),
    );
    assert_eq!(url_and_model(&by_file), ("http://file/v1", "file"));
}

#[test]
fn missing_credentials_name_the_variable_to_set() {
    let nothing = Environment::of(&[], &[]);
    let (error, hint) = refusal(choice("openai"), "", &nothing);
    assert_eq!(
        error,
        "endpoint `openai` needs a key, and OPENAI_API_KEY is not set"
    );
    assert!(hint.starts_with("set OPENAI_API_KEY"), "{hint}");
    let (error, hint) = refusal(choice("vllm"), "", &nothing);
    assert_eq!(error, "endpoint `vllm` has no URL");
    assert!(hint.starts_with("set VLLM_URL"), "{hint}");
}

#[test]
fn an_unknown_name_comes_with_the_nearest() {
    let (error, hint) = refusal(choice("opnai"), "", &Environment::of(&[], &[]));
    assert_eq!(
        (error.as_str(), hint.as_str()),
        ("no endpoint is named `opnai`", "did you mean `openai`?")
    );
    let (_, hint) = refusal(choice("zzz"), "[endpoints.mine]", &Environment::of(&[], &[]));
    assert!(hint.contains("vllm, openai, hf_router, demo, mine"), "{hint}");
}

#[test]
fn a_missing_model_is_an_error_that_says_where_to_set_it() {
    let given = Choice {
        base_url: Some("http://a/v1"),
        ..Choice::default()
    };
    let (error, hint) = refusal(given, "", &Environment::of(&[], &[]));
    assert_eq!(
        (error.as_str(), hint.as_str()),
        ("endpoint `custom` has no model", "pass `--model MODEL`")
    );
}

#[test]
fn a_given_url_gets_no_key_that_it_was_not_given() {
    let environment = Environment::of(&[("OPENAI_API_KEY", "secret"), ("MINE", "own")], &[]);
    let elsewhere = Choice {
        base_url: Some("http://elsewhere/v1"),
        ..choice("openai")
    };
    assert_eq!(key(&server(elsewhere, "", &environment)), None);
    let lookalike = Choice {
        base_url: Some("http://api.openai.com/v1"),
        ..choice("openai")
    };
    assert_eq!(
        key(&server(lookalike, "", &environment)),
        None,
        "another scheme is another origin"
    );
    let same = Choice {
        base_url: Some("https://API.openai.com:443/v1/"),
        ..choice("openai")
    };
    assert_eq!(key(&server(same, "", &environment)), Some("secret"));
    let named = Choice {
        key_variable: Some("MINE"),
        ..elsewhere
    };
    assert_eq!(key(&server(named, "", &environment)), Some("own"));
}

#[test]
fn a_url_of_a_dot_env_file_does_not_draw_a_key_of_the_environment() {
    let mixed = Environment::of(
        &[("OPENAI_API_KEY", "secret")],
        &[("OPENAI_BASE_URL", "http://evil/v1")],
    );
    let (error, _) = refusal(choice("openai"), "", &mixed);
    assert_eq!(
        error,
        "the key OPENAI_API_KEY of the environment is not sent to OPENAI_BASE_URL of the .env file"
    );
    let whole = Environment::of(
        &[],
        &[("OPENAI_API_KEY", "k"), ("OPENAI_BASE_URL", "http://mine/v1")],
    );
    assert_eq!(key(&server(choice("openai"), "", &whole)), Some("k"));
    let default_key = Environment::of(&[], &[("VLLM_URL", "http://mine")]);
    assert_eq!(
        key(&server(choice("vllm"), "", &default_key)),
        Some("intercepted")
    );
}

#[test]
fn the_users_own_entry_is_taken_as_it_is_written() {
    let config = r#"
        [endpoints.mine]
        url = "http://gpu:9000/custom"
        model = "m"
        key_variable = "MY_KEY"
        headers = { x-team = "rl" }
        proxy = "none"
        idle_timeout_s = 5.0
        capture = "buffer"
        sampling = { temperature = 0.5 }
    "#;
    let resolved = server(choice("mine"), config, &Environment::of(&[("MY_KEY", "k")], &[]));
    assert_eq!(resolved.base_url, "http://gpu:9000/custom");
    assert_eq!(key(&resolved), Some("k"));
    assert!(matches!(resolved.proxy, ProxyPolicy::None));
    let headers: Vec<_> = resolved
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose_secret()))
        .collect();
    assert_eq!(headers, [("x-team", "rl")]);
    assert_eq!(
        (resolved.timeouts.idle, resolved.capture),
        (Duration::from_secs(5), CaptureMode::Buffer)
    );
    assert_eq!(resolved.sampling.temperature, Some(0.5));
    let (error, _) = refusal(choice("mine"), config, &Environment::of(&[], &[]));
    assert_eq!(error, "endpoint `mine` needs a key, and MY_KEY is not set");
}

#[test]
fn proxies_of_the_environment_are_read_as_curl_reads_them() {
    let environment = Environment::of(
        &[
            ("VLLM_URL", "http://a"),
            ("https_proxy", "http://p:1"),
            ("HTTP_PROXY", "http://cgi"),
            ("NO_PROXY", "b"),
        ],
        &[],
    );
    let ProxyPolicy::Variables {
        https_proxy,
        http_proxy,
        no_proxy,
    } = server(choice("vllm"), "", &environment).proxy
    else {
        panic!("no proxy was read");
    };
    assert_eq!(
        https_proxy.as_ref().map(ExposeSecret::expose_secret),
        Some("http://p:1")
    );
    assert!(http_proxy.is_none());
    assert_eq!(no_proxy.as_deref(), Some("b"));
}

#[test]
fn a_password_in_a_url_is_refused_and_not_repeated() {
    let given = Choice {
        base_url: Some("http://me:hunter2@host/v1"),
        model: Some("m"),
        ..Choice::default()
    };
    let (error, _) = refusal(given, "", &Environment::of(&[], &[]));
    assert!(
        error.contains("credentials") && !error.contains("hunter2"),
        "{error}"
    );
}

#[test]
fn what_is_no_url_is_refused() {
    for (url, reason) in [
        ("localhost:8000/v1", "is not a URL"),
        ("ftp://host/v1", "scheme"),
        ("http://host/v1?key=1", "query"),
        ("http://host/v1#x", "fragment"),
        ("http:///v1", "is not a URL"),
        ("", "is not a URL"),
    ] {
        let given = Choice {
            base_url: Some(url),
            model: Some("m"),
            ..Choice::default()
        };
        let (error, _) = refusal(given, "", &Environment::of(&[], &[]));
        assert!(error.contains(reason), "{url}: {error}");
    }
}

#[test]
fn a_time_that_is_none_is_refused() {
    for seconds in ["nan", "-1.0", "0.0", "inf", "1e300"] {
        let config =
            format!("[endpoints.mine]\nurl = \"http://a\"\nmodel = \"m\"\nidle_timeout_s = {seconds}");
        let (error, _) = refusal(choice("mine"), &config, &Environment::of(&[], &[]));
        assert_eq!(
            error,
            "`idle_timeout_s` of endpoint `mine` is not a number of seconds above zero"
        );
    }
}

#[test]
fn the_scripted_model_takes_no_settings() {
    let nothing = Environment::of(&[], &[]);
    assert!(matches!(
        resolve(choice("demo"), &Config::default(), &nothing).unwrap(),
        Chosen::Demo
    ));
    let (error, _) = refusal(
        Choice {
            model: Some("m"),
            ..choice("demo")
        },
        "",
        &nothing,
    );
    assert_eq!(error, "endpoint `demo` takes no --model");
}

#[test]
fn nothing_chosen_is_said_with_what_there_is() {
    let (error, hint) = refusal(Choice::default(), "", &Environment::of(&[], &[]));
    assert_eq!(error, "no endpoint was chosen");
    assert!(hint.contains("vllm, openai, hf_router, demo"), "{hint}");
    let config = "[defaults]\nendpoint = \"vllm\"";
    assert_eq!(
        server(
            Choice::default(),
            config,
            &Environment::of(&[("VLLM_URL", "http://a")], &[])
        )
        .name,
        "vllm"
    );
}
