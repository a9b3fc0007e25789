//! The scripts behind the preset tasks: think, write a file, check it, say so.

use super::script::{Conversation, Script, Turn};

/// Solves the preset tasks, whose instruction it recognises by the file it names; to any other it answers politely.
/// Calls for titles and summaries get one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresetScript;

/// A task this script can solve.
struct Preset {
    /// What its instruction contains, and no other's.
    sign: &'static str,
    /// The file to write, in the working directory.
    file: &'static str,
    /// What is in it.
    content: &'static str,
    /// Thought before the file is written.
    plan: &'static str,
    /// Run in the file's directory once it is written.
    check: &'static str,
    /// What the check is for.
    check_description: &'static str,
    /// Said when the check has passed.
    done: &'static str,
}

const PRESETS: [Preset; 3] = [
    Preset {
        sign: "binary_search.py",
        file: "binary_search.py",
        content: "def binary_search(arr: list[int], target: int) -> int:\n    \"\"\"Return the index of target in the sorted list \
                  arr, or -1 if it is absent.\"\"\"\n    low, high = 0, len(arr) - 1\n    while low <= high:\n        middle = \
                  (low + high) // 2\n        if arr[middle] == target:\n            return middle\n        if arr[middle] < \
                  target:\n            low = middle + 1\n        else:\n            high = middle - 1\n    return -1\n",
        plan: "The file must expose one function. I keep two bounds and halve the range — log₂ n steps — without list.index.",
        check: "python3 -B -c \"from binary_search import binary_search as s; assert s([1, 2, 3, 4, 5], 3) == 2; assert s([1, 2, \
                3], 99) == -1; assert s([], 1) == -1; print('OK')\"",
        check_description: "Checks the binary search",
        done: "`binary_search.py` is in the working directory. It finds the index of `target`, or -1, and the check passed ✓.",
    },
    Preset {
        sign: "fizzbuzz.py",
        file: "fizzbuzz.py",
        content: "def fizzbuzz(n: int) -> list[str]:\n    \"\"\"Return the FizzBuzz sequence for the integers 1..n.\"\"\"\n    \
                  words = []\n    for number in range(1, n + 1):\n        word = \"Fizz\" * (number % 3 == 0) + \"Buzz\" * \
                  (number % 5 == 0)\n        words.append(word or str(number))\n    return words\n",
        plan: "Multiples of 3 are Fizz, of 5 Buzz, of both FizzBuzz; every other number is itself, as a string.",
        check: "python3 -B -c \"from fizzbuzz import fizzbuzz as f; assert f(5) == ['1', '2', 'Fizz', '4', 'Buzz']; assert \
                f(15)[-1] == 'FizzBuzz'; print('OK')\"",
        check_description: "Checks the FizzBuzz sequence",
        done: "`fizzbuzz.py` is in the working directory, and the check passed ✓.",
    },
    Preset {
        sign: "numbers.csv",
        file: "mean.py",
        content: "import csv\nfrom pathlib import Path\n\nsource = Path(\"/home/user/data/numbers.csv\")\ntry:\n    import \
                  pandas\n\n    mean = float(pandas.read_csv(source)[\"x\"].mean())\nexcept ImportError:\n    with \
                  source.open(newline=\"\") as lines:\n        numbers = [float(row[\"x\"]) for row in csv.DictReader(lines)]\n    \
                  mean = sum(numbers) / len(numbers)\nPath(\"/home/user/workdir/mean.txt\").write_text(str(mean))\n",
        plan: "One column, x. Pandas reads it where it is installed; the csv module does the same arithmetic where it is not.",
        check: "python3 mean.py && cat /home/user/workdir/mean.txt",
        check_description: "Computes the mean and shows it",
        done: "The mean of column `x` is in `/home/user/workdir/mean.txt`, as a single float without a newline.",
    },
];

impl Script for PresetScript {
    fn next_turn(&self, conversation: &Conversation<'_>) -> Turn {
        let named = |text: &str| PRESETS.iter().find(|preset| text.contains(preset.sign));
        let preset = conversation.user_texts_from_last().find_map(named);
        if conversation.system().contains("title generator") {
            return Turn::says(title(conversation.last_said())).thinking("A few words will do.");
        }
        if conversation.system().contains("summarization agent") {
            return Turn::says("The task was read; nothing is left open.").thinking("What happened so far?");
        }
        match preset {
            Some(preset) => preset.turn(conversation),
            None => Turn::says(
                "I am a scripted model: I follow a script and know the preset tasks only. I have read your instruction and \
                 changed nothing.",
            )
            .thinking("This is none of the tasks I know."),
        }
    }
}

impl Preset {
    fn turn(&self, conversation: &Conversation<'_>) -> Turn {
        let directory = conversation
            .working_directory()
            .unwrap_or("/home/user/workdir")
            .trim_end_matches('/');
        let path = format!("{directory}/{}", self.file);
        let (writer, shell) = (conversation.writer(), conversation.shell());
        match (conversation.turns_taken(), writer, shell) {
            (0, Some(writer), _) => writer
                .writes(&path, self.content)
                .thinking(self.plan)
                .saying(format!("I will write `{}`.", self.file)),
            (0, None, Some(shell)) => {
                let command = format!("cat > '{path}' <<'END_OF_FILE'\n{}END_OF_FILE", self.content);
                shell
                    .runs(&command, &format!("Writes {}", self.file))
                    .thinking(self.plan)
                    .saying(format!("I will write `{}`.", self.file))
            }
            (0, None, None) => Turn::says(format!(
                "I was given no tool to write with. This belongs into `{path}`:\n\n{}",
                self.content
            ))
            .thinking(self.plan),
            (1, _, Some(shell)) => {
                let command = format!("cd '{directory}' && {}", self.check);
                shell
                    .runs(&command, self.check_description)
                    .thinking("Written. Now I run it, to be sure.")
            }
            (_, _, Some(shell)) if wants_a_last_command(conversation) => shell
                .runs(LAST_COMMAND, "Ends the work")
                .thinking("Nothing is left to do.")
                .saying(self.done),
            _ => Turn::says(self.done).thinking("Nothing is left to do."),
        }
    }
}

/// By which mini-swe-agent's model says that it is done; it takes no turn without a tool call for the last.
const LAST_COMMAND: &str = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

fn wants_a_last_command(conversation: &Conversation<'_>) -> bool {
    conversation
        .user_texts_from_last()
        .any(|text| text.contains(LAST_COMMAND))
}

/// A title of at most 50 characters from the first line of an instruction.
fn title(instruction: &str) -> String {
    if let Some(preset) = PRESETS.iter().find(|preset| instruction.contains(preset.sign)) {
        return format!("Create {}", preset.file);
    }
    let line = instruction
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("A task");
    line.trim().chars().take(50).collect()
}
