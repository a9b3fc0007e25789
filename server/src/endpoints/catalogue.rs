use crate::config::Config;
use crate::environment::names;

/// The endpoint that `dressage` carries itself: a scripted model, without network or key.
pub const DEMO: &str = "demo";

/// The name of an endpoint that was given as a URL alone.
pub const CUSTOM: &str = "custom";

/// An endpoint that is known by name.
#[derive(Clone, Copy, Debug)]
pub struct Shorthand {
    /// Its name.
    pub name: &'static str,
    /// The variable that holds its URL.
    pub url_variable: &'static str,
    /// The variable that holds its key.
    pub key_variable: &'static str,
    /// The variable that holds its model.
    pub model_variable: &'static str,
    /// Its URL, where there is one that everybody means.
    pub default_url: Option<&'static str>,
    /// Its key, for servers that check none.
    pub default_key: Option<&'static str>,
    /// Its model.
    pub default_model: &'static str,
    /// Whether thinking is turned off where nobody says.
    pub disable_thinking: bool,
}

/// The endpoints known by name, besides [`DEMO`].
pub const SHORTHANDS: &[Shorthand] = &[
    Shorthand {
        name: "vllm",
        url_variable: names::VLLM_URL,
        key_variable: names::VLLM_API_KEY,
        model_variable: names::VLLM_MODEL,
        default_url: None,
        default_key: Some("intercepted"),
        default_model: "Qwen/Qwen3.5-4B",
        disable_thinking: true,
    },
    Shorthand {
        name: "openai",
        url_variable: names::OPENAI_BASE_URL,
        key_variable: names::OPENAI_API_KEY,
        model_variable: names::OPENAI_MODEL,
        default_url: Some("https://api.openai.com/v1"),
        default_key: None,
        default_model: "gpt-4o-mini",
        disable_thinking: false,
    },
    Shorthand {
        name: "hf_router",
        url_variable: names::HF_ROUTER_BASE_URL,
        key_variable: names::HF_ROUTER_API_KEY,
        model_variable: names::HF_ROUTER_MODEL,
        default_url: Some("https://router.huggingface.co/v1"),
        default_key: None,
        default_model: "Qwen/Qwen3-4B-Instruct-2507:nscale",
        disable_thinking: false,
    },
];

/// The endpoint known by that name.
#[must_use]
pub fn shorthand(name: &str) -> Option<&'static Shorthand> {
    SHORTHANDS.iter().find(|shorthand| shorthand.name == name)
}

/// The names that the catalogue has.
pub fn catalogue_names() -> impl Iterator<Item = &'static str> {
    SHORTHANDS.iter().map(|shorthand| shorthand.name).chain([DEMO])
}

/// Every name that can be chosen.
#[must_use]
pub fn known_names(config: &Config) -> Vec<String> {
    let mut known: Vec<String> = catalogue_names().map(str::to_owned).collect();
    known.extend(
        config
            .endpoints
            .keys()
            .filter(|name| !known.contains(name))
            .cloned()
            .collect::<Vec<_>>(),
    );
    known
}
