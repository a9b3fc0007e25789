//! Access to providers of sandboxes: keys from the environment, addresses from it or from the configuration file.
//!
//! A key never goes to an address that a `.env` file brought in: the variables of addresses are not read from such.

use crate::config::Config;
use crate::environment::{Environment, names};
use dressage_sandbox::{DockerAccess, E2bAccess, HuggingFaceAccess, Providers};

/// What backends at providers are given.
#[must_use]
pub fn providers(config: &Config, environment: &Environment) -> Providers {
    let set = |name: &str| environment.get(name).map(str::to_owned);
    let (e2b, huggingface) = (config.sandboxes.e2b.clone(), config.sandboxes.huggingface.clone());
    let docker = config.sandboxes.docker.clone();
    Providers {
        docker: DockerAccess {
            host: set(names::DOCKER_HOST).or(docker.host),
            image: docker.image,
        },
        e2b: E2bAccess {
            api_key: set(names::E2B_API_KEY).map(Into::into),
            domain: set(names::E2B_DOMAIN).or(e2b.domain),
            api_url: set(names::E2B_API_URL).or(e2b.api_url),
            sandbox_url: set(names::E2B_SANDBOX_URL).or(e2b.sandbox_url),
            agent_user: e2b.agent_user,
        },
        huggingface: HuggingFaceAccess {
            token: set(names::HF_TOKEN).map(Into::into),
            endpoint: set(names::HF_ENDPOINT).or(huggingface.endpoint),
            namespace: huggingface.namespace,
            flavor: huggingface.flavor,
            agent_user: huggingface.agent_user,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dressage_sandbox::AgentUser;
    use secrecy::ExposeSecret;

    #[test]
    fn the_environment_goes_over_the_file_and_a_dot_env_file_brings_no_address() {
        let config: Config = toml::from_str(
            "[sandboxes.e2b]\ndomain = \"file\"\napi_url = \"http://file\"\nagent_user = \"default\"\n\
             [sandboxes.huggingface]\nflavor = \"t4-small\"",
        )
        .unwrap();
        let environment = Environment::of(
            &[("E2B_DOMAIN", "process")],
            &[
                ("E2B_API_KEY", "key"),
                ("E2B_SANDBOX_URL", "http://evil"),
                ("E2B_API_URL", "http://evil"),
                ("HF_TOKEN", "token"),
                ("HF_ENDPOINT", "http://evil"),
            ],
        );
        let Providers {
            e2b: access,
            huggingface,
            ..
        } = providers(&config, &environment);
        assert_eq!(access.api_key.unwrap().expose_secret(), "key");
        assert_eq!(access.domain.as_deref(), Some("process"));
        assert_eq!(access.api_url.as_deref(), Some("http://file"));
        assert_eq!(access.sandbox_url, None);
        assert_eq!(access.agent_user, Some(AgentUser::Default));
        assert_eq!(huggingface.agent_user, None);
        assert_eq!(huggingface.token.unwrap().expose_secret(), "token");
        assert_eq!(huggingface.endpoint, None);
        assert_eq!(huggingface.flavor.as_deref(), Some("t4-small"));
    }
}
