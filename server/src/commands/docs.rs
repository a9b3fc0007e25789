//! `dressage docs PAGE`: the pages of docs/ that are made from the source.

use crate::config::{KEYS, TABLES};
use crate::endpoints::{DEMO, SHORTHANDS};
use crate::environment::{DotEnv, VARIABLES};
use crate::error::Failure;
use crate::exit::Exit;
use crate::logging::FIELDS;
use crate::metrics;
use crate::service::Code;
use crate::terminal::Terminal;
use dressage_rollout::faults;
use std::fmt::Write as _;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The page.
    #[arg(value_enum)]
    page: Page,
}

/// A page of docs/.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Page {
    /// docs/configuration.md
    Configuration,
    /// docs/errors.md
    Errors,
    /// docs/logging.md
    Logging,
    /// docs/metrics.md
    Metrics,
}

/// Writes the page to standard output.
///
/// # Errors
/// Where standard output cannot be written.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> Result<Exit, Failure> {
    let page = match arguments.page {
        Page::Configuration => configuration(),
        Page::Errors => errors(),
        Page::Logging => logging(),
        Page::Metrics => metrics(),
    };
    terminal
        .bytes(page.as_bytes())
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
    Ok(Exit::Done)
}

/// A row of a Markdown table.
fn row<const N: usize>(page: &mut String, cells: [&str; N]) {
    let escaped = cells.map(|cell| cell.replace('|', "\\|"));
    let _ = writeln!(page, "| {} |", escaped.join(" | "));
}

fn configuration() -> String {
    let mut page = String::from(CONFIGURATION_HEAD);
    for &table in TABLES {
        let _ = write!(
            page,
            "\n### `[{table}]`\n\n| key | for example | what it sets |\n| --- | --- | --- |\n"
        );
        for key in KEYS.iter().filter(|key| key.table == table) {
            row(
                &mut page,
                [
                    &format!("`{}`", key.name),
                    &format!("`{}`", key.example),
                    key.meaning,
                ],
            );
        }
    }
    page.push_str(ENDPOINTS_HEAD);
    for shorthand in SHORTHANDS {
        let code = |text: &str| format!("`{text}`");
        row(
            &mut page,
            [
                &code(shorthand.name),
                &code(shorthand.url_variable),
                &shorthand.default_url.map_or("none: must be set".into(), code),
                &code(shorthand.key_variable),
                &shorthand.default_key.map_or("none: must be set".into(), code),
                &code(shorthand.model_variable),
                &code(shorthand.default_model),
            ],
        );
    }
    let _ = write!(
        page,
        "\n`{DEMO}` is the scripted model that `dressage` carries: no URL, no key, no network.\n"
    );
    page.push_str(VARIABLES_HEAD);
    for variable in VARIABLES {
        let dot_env = if variable.dot_env == DotEnv::Honoured {
            "yes"
        } else {
            "no"
        };
        row(
            &mut page,
            [&format!("`{}`", variable.name), variable.meaning, dot_env],
        );
    }
    page
}

const CONFIGURATION_HEAD: &str = "\
# Configuration

Made by `dressage docs configuration`; a test holds it against the source.

What is given on the command line goes over the environment, that over the configuration file, and that over the
defaults. Nothing needs to be configured to run `dressage demo`.

## The configuration file

TOML, at `dressage/config.toml` under `XDG_CONFIG_HOME` (default `~/.config`), or where `--config` or `DRESSAGE_CONFIG`
says. A key that is not listed here is an error. Keys of endpoints themselves never stand in it: `key_variable` names the
environment variable that holds one.
";

const ENDPOINTS_HEAD: &str = "
## Endpoints

Known by name, with the variables, precedence and defaults of OpenEnv's `opencode_env`. A table `[endpoints.vllm]` changes
the entry of that name, under the environment; any other name is an endpoint of your own.

| name | URL | default | key | default | model | default |
| --- | --- | --- | --- | --- | --- | --- |
";

const VARIABLES_HEAD: &str = "
A key goes only to the origin (scheme, host and port) that it is configured with. `--base-url` with another origin is
asked without a key, unless `--api-key-env` names one; and a key of the environment is not sent to a URL that a `.env` file
brought in. Redirects are not followed.

## Environment variables

An empty variable counts as unset. A file `.env` in the working directory fills in what is not set, for the variables
marked so and for those that hold keys of your own endpoints.

| variable | what it sets | in `.env` |
| --- | --- | --- |
";

fn errors() -> String {
    let mut page = String::from(
        "# Errors\n\nMade by `dressage docs errors`; a test holds it against the source.\n\n## Exit codes\n\n\
         | code | meaning |\n| --- | --- |\n",
    );
    for exit in Exit::ALL {
        row(&mut page, [&exit.code().to_string(), exit.meaning()]);
    }
    page.push_str(
        "\nWhat is written to standard error then is up to three kinds of lines: `error:` says what failed and on which\n\
         object, `cause:` why, `hint:` what may help.\n\n\
         ## Faults\n\nEach failed rollout has one fault, stored with it and shown by `dressage show`. `owner` tells whose\n\
         failure it was; a rollout with a retryable fault may succeed when it is run again as it is.\n\n\
         | code | owner | retryable | meaning |\n| --- | --- | --- | --- |\n",
    );
    for fault in faults::ALL {
        let owner = format!("{:?}", fault.owner).to_lowercase();
        let retryable = if fault.retryable { "yes" } else { "no" };
        row(
            &mut page,
            [&format!("`{}`", fault.code), &owner, retryable, fault.description],
        );
    }
    page.push_str(ERROR_CODES_HEAD);
    for code in Code::ALL {
        row(
            &mut page,
            [
                &format!("`{}`", code.name()),
                &code.status().to_string(),
                code.meaning(),
            ],
        );
    }
    page
}

const ERROR_CODES_HEAD: &str = "
## Codes of the server

Every failure under `/api` of `dressage serve` has one form:

```json
{\"error\": {\"code\": \"invalid_request\", \"message\": \"what failed\", \"hint\": \"what may help\",
           \"details\": [{\"path\": \"task.agent.nam\", \"message\": \"what is wrong there\"}]}}
```

`hint` and `details` are there only where there is something to say. Tools of MCP tell the same codes. Branch on the code,
not on the message.

| code | status | meaning |
| --- | --- | --- |
";

fn metrics() -> String {
    let mut page = String::from(
        "# Metrics\n\nMade by `dressage docs metrics`; a test holds it against the source.\n\n\
         `GET /metrics` of `dressage serve` answers in the text format of Prometheus. Where the server asks for keys, it asks\n\
         for one here too. Counters begin at 0 when the server starts. Labels have few values: no ids, no names of tasks.\n\n\
         | metric | kind | labels | what it tells |\n| --- | --- | --- | --- |\n",
    );
    for metric in metrics::ALL {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        row(
            &mut page,
            [
                &format!("`{}`", metric.name),
                &metric.kind.to_string(),
                &labels.join(", "),
                metric.meaning,
            ],
        );
    }
    page.push_str(SCRAPE);
    page
}

const SCRAPE: &str = "
```yaml
scrape_configs:
  - job_name: dressage
    authorization: {credentials_file: /etc/dressage/key}   # where the server asks for keys
    static_configs: [{targets: ['127.0.0.1:8000']}]
```
";

fn logging() -> String {
    let mut page = String::from(
        "# Logging\n\nMade by `dressage docs logging`; a test holds it against the source.\n\n\
         The log goes to standard error; results go to standard output. By default it holds warnings and errors; `-v` adds\n\
         information, `-vv` debugging, `--quiet` leaves errors only, and `DRESSAGE_LOG` takes a filter such as\n\
         `warn,dressage_sandbox=debug`. `--log-format json` writes a JSON object a line.\n\n\
         A message can be read without its fields, and fields can be searched without the message. Prompts, bodies, keys and\n\
         tokens are never logged.\n\n| field | what it holds |\n| --- | --- |\n",
    );
    for field in FIELDS {
        row(&mut page, [&format!("`{}`", field.name), field.meaning]);
    }
    page
}
