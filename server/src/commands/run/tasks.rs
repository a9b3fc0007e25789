//! From what was given on the command line to tasks.

use super::Arguments;
use crate::error::{Failure, nearest};
use crate::exit::Exit;
use dressage_rollout::agents::Agents;
use dressage_rollout::load;
use dressage_rollout::presets::{PRESETS, Preset};
use dressage_wire::sampling::Sampling;
use dressage_wire::task::{INSTRUCTION_MAX_BYTES, Task, VerifyWhen};
use std::io::Read;
use std::path::Path;

/// Reads what was given, puts the options over it, and checks it.
///
/// # Errors
/// Where nothing or several kinds of things were given, or one is not a task.
pub fn read(arguments: &Arguments) -> Result<Vec<Task>, Failure> {
    let mut tasks = given(arguments)?;
    for task in &mut tasks {
        put_over(arguments, task);
        task.validate()
            .map_err(|error| Failure::from_error(Exit::BadInput, &error).maybe_hint(error.hint()))?;
    }
    Ok(tasks)
}

fn given(arguments: &Arguments) -> Result<Vec<Task>, Failure> {
    let sources = [
        !arguments.inputs.is_empty(),
        arguments.file.is_some(),
        arguments.preset.is_some(),
    ];
    match sources.iter().filter(|given| **given).count() {
        1 => {}
        0 => {
            return Err(Failure::input("nothing to do was given").hint(
                "give an instruction, `@FILE`, `-` for standard input, or a task file: \
                 dressage run \"write hello to hello.txt\" --endpoint vllm",
            ));
        }
        _ => {
            return Err(Failure::input("an instruction or task was given more than once")
                .hint("give one of: an argument, `--file`, `--preset`"));
        }
    }
    if let Some(name) = &arguments.preset {
        return Ok(vec![preset(name)?.task()]);
    }
    if let Some(file) = &arguments.file {
        return Ok(vec![instructed(instruction_file(file)?)]);
    }
    if arguments.inputs.iter().all(|input| is_task_path(input)) {
        let mut tasks = Vec::new();
        for input in &arguments.inputs {
            let loaded = load::tasks(Path::new(input))
                .map_err(|error| Failure::from_error(Exit::BadInput, &error).maybe_hint(error.hint()))?;
            tasks.extend(loaded.into_iter().map(|(_, task)| task));
        }
        return Ok(tasks);
    }
    match arguments.inputs.as_slice() {
        [input] if input == "-" => Ok(vec![instructed(instruction(
            std::io::stdin().lock(),
            "standard input",
        )?)]),
        [input] => match input.strip_prefix('@') {
            Some(file) => Ok(vec![instructed(instruction_file(Path::new(file))?)]),
            None => Ok(vec![instructed(input.clone())]),
        },
        _ => Err(Failure::input("several instructions were given")
            .hint("quote the instruction, or give one task file for each")),
    }
}

/// The preset of that name.
///
/// # Errors
/// Where there is none; names the nearest.
pub fn preset(name: &str) -> Result<&'static Preset, Failure> {
    Preset::named(name).ok_or_else(|| {
        let known = PRESETS.iter().map(|preset| preset.name);
        let hint = match nearest(name, known.clone()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known are {}", known.collect::<Vec<_>>().join(", ")),
        };
        Failure::input(format!("no preset is named `{name}`")).hint(hint)
    })
}

/// Whether an argument means a file or directory: a directory there is, or a name like a task file's. So a misspelt path
/// is an error, and not told to an agent.
fn is_task_path(input: &str) -> bool {
    let extension = Path::new(input).extension();
    let named = extension.is_some_and(|extension| extension == "toml" || extension == "json");
    let one_word = !input.contains(char::is_whitespace) && !input.starts_with('@');
    (named && (one_word || Path::new(input).is_file()))
        || (!input.is_empty() && Path::new(input).is_dir())
        || (one_word && input.ends_with('/'))
}

fn instructed(instruction: String) -> Task {
    Task {
        instruction,
        ..Task::default()
    }
}

fn instruction_file(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| {
        Failure::input(format!("instruction file `{}` could not be read", path.display()))
            .cause(error.to_string())
    };
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Failure::input(format!(
            "instruction file `{}` is not a regular file",
            path.display()
        )));
    }
    instruction(
        std::fs::File::open(path).map_err(failed)?,
        &format!("`{}`", path.display()),
    )
}

/// Reads an instruction, verbatim, and not much more of it than may be.
fn instruction(from: impl Read, name: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    from.take(INSTRUCTION_MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::input(format!("{name} could not be read")).cause(error.to_string()))?;
    if bytes.len() > INSTRUCTION_MAX_BYTES {
        return Err(Failure::input(format!(
            "the instruction in {name} is over the limit of {INSTRUCTION_MAX_BYTES} bytes"
        ))
        .hint("put long material into `files` of a task file, and name the file in the instruction"));
    }
    String::from_utf8(bytes)
        .map_err(|_| Failure::input(format!("the instruction in {name} is not UTF-8 text")))
}

/// Puts the options over a task.
fn put_over(arguments: &Arguments, task: &mut Task) {
    task.setup.extend(arguments.setup.iter().cloned());
    task.verify.extend(arguments.verify.iter().cloned());
    task.env.extend(arguments.env.iter().cloned());
    if arguments.verify_always {
        task.verify_when = VerifyWhen::Always;
    }
    if arguments.image.is_some() {
        task.image = arguments.image.clone();
        task.dockerfile = None;
    }
    task.verify_in = arguments.verify_in.or(task.verify_in);
    task.snapshot = arguments.snapshot.or(task.snapshot);
    if let Some(network) = &arguments.network {
        task.network.clone_from(network);
    }
    let agent = &mut task.agent;
    over(&mut agent.name, arguments.agent.clone());
    agent.version = arguments.agent_version.clone().or(agent.version.take());
    agent.system_prompt = arguments.system_prompt.clone().or(agent.system_prompt.take());
    if !arguments.disable_tool.is_empty() {
        let by_default = || {
            let known = Agents::builtin().get(&agent.name).ok();
            let tools = known.iter().flat_map(|agent| agent.disabled_tools());
            tools.map(|&tool| tool.to_owned()).collect()
        };
        agent
            .disabled_tools
            .get_or_insert_with(by_default)
            .extend(arguments.disable_tool.iter().cloned());
    }
    if !arguments.enable_tool.is_empty() {
        agent.enabled_tools = Some(arguments.enable_tool.clone());
    }
    let given = Sampling {
        temperature: arguments.temperature,
        top_p: arguments.top_p,
        top_k: arguments.top_k,
        min_p: arguments.min_p,
        presence_penalty: arguments.presence_penalty,
        frequency_penalty: arguments.frequency_penalty,
        repetition_penalty: arguments.repetition_penalty,
        seed: arguments.seed,
    };
    task.sampling = given.over(&task.sampling);
    let limits = &mut task.limits;
    over(&mut limits.setup_timeout_s, arguments.setup_timeout);
    over(&mut limits.agent_timeout_s, arguments.agent_timeout);
    over(&mut limits.verify_timeout_s, arguments.verify_timeout);
    over(&mut limits.memory_mb, arguments.memory_mb);
    over(&mut limits.cpus, arguments.cpus);
    limits.max_calls = arguments.max_calls.or(limits.max_calls);
    limits.max_prompt_tokens = arguments.max_prompt_tokens.or(limits.max_prompt_tokens);
    limits.max_completion_tokens = arguments.max_completion_tokens.or(limits.max_completion_tokens);
    limits.max_wall_s = arguments.max_wall.or(limits.max_wall_s);
    limits.max_cost = arguments.max_cost.or(limits.max_cost);
    limits.max_tokens_cap = arguments.max_tokens_cap.or(limits.max_tokens_cap);
}

fn over<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(input: &str) -> Arguments {
        Arguments {
            inputs: vec![input.into()],
            samples: 1,
            ..Arguments::default()
        }
    }

    #[test]
    fn an_instruction_is_taken_verbatim() {
        let text = "  write \"it\"\n\tand stop. ";
        assert_eq!(read(&arguments(text)).unwrap()[0].instruction, text);
    }

    #[test]
    fn a_path_that_is_not_there_is_not_taken_for_an_instruction() {
        for path in ["tasks/none.toml", "none.json", "no-folder/"] {
            let failure = read(&arguments(path)).unwrap_err();
            assert!(
                failure.what.contains(path) && failure.exit == Exit::BadInput,
                "{}",
                failure.what
            );
        }
    }

    #[test]
    fn options_go_over_the_task_and_commands_are_added() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let text = "instruction = 'x'\nverify = ['a']\n[sampling]\ntemperature = 0.1\ntop_p = 0.9\n[limits]\nmax_calls = 3";
        std::fs::write(&path, text).unwrap();
        let given = Arguments {
            verify: vec!["b".into()],
            temperature: Some(0.7),
            agent_timeout: Some(9.0),
            enable_tool: vec!["bash".into()],
            ..arguments(path.to_str().unwrap())
        };
        let task = read(&given).unwrap().remove(0);
        assert_eq!(task.verify, ["a", "b"]);
        assert_eq!(
            (task.sampling.temperature, task.sampling.top_p),
            (Some(0.7), Some(0.9))
        );
        assert_eq!(
            (task.limits.agent_timeout_s, task.limits.max_calls),
            (9.0, Some(3))
        );
        assert_eq!(task.agent.enabled_tools, Some(vec!["bash".to_owned()]));
    }

    #[test]
    fn an_instruction_of_10_mb_is_refused_before_it_is_read_whole() {
        let failure = instruction(std::io::repeat(b'x'), "standard input").unwrap_err();
        assert!(failure.what.contains("over the limit"), "{}", failure.what);
    }

    #[test]
    fn two_instructions_are_refused() {
        let given = Arguments {
            inputs: vec!["write".into(), "hello".into()],
            ..Arguments::default()
        };
        assert_eq!(read(&given).unwrap_err().what, "several instructions were given");
        let given = Arguments {
            preset: Some("fizzbuzz".into()),
            ..arguments("x")
        };
        assert_eq!(
            read(&given).unwrap_err().what,
            "an instruction or task was given more than once"
        );
    }
}
