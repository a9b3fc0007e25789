//! Ready-made tasks: small, offline, and verified from outside.
//!
//! Their verify commands run the agent's code in a child process and compare what it prints, so that code which ends
//! the process early, or with success, passes nothing.

use dressage_wire::task::{AgentSpec, Limits, Task};

/// A ready-made task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is about, in a few words.
    pub title: &'static str,
    instruction: &'static str,
    setup: &'static [&'static str],
    verify: &'static [&'static str],
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "binary_search",
        title: "a function that searches a sorted list",
        instruction: "Write a Python module `binary_search.py` in the current working directory. It has one function, \
            `binary_search(arr: list[int], target: int) -> int`, that finds `target` in the sorted list `arr` by binary \
            search and returns its index, or -1 where it is not there. Do not use `list.index`.",
        setup: &[],
        verify: &[
            "test -f /home/user/workdir/binary_search.py",
            r#"test "$(python -c 'import sys; sys.path.insert(0, "/home/user/workdir"); from binary_search import binary_search as b; print([b([1, 2, 3, 4, 5], 3), b([1, 2, 3], 99), b([], 1), b([2, 4], 4), b(list(range(0, 2000, 2)), 1998)])')" = '[2, -1, -1, 1, 999]'"#,
        ],
    },
    Preset {
        name: "fizzbuzz",
        title: "a function that counts with words",
        instruction: "Write a Python module `fizzbuzz.py` in the current working directory. It has one function, \
            `fizzbuzz(n: int) -> list[str]`, that returns the numbers from 1 to n as text, where multiples of 3 are \
            'Fizz', multiples of 5 are 'Buzz', and multiples of both are 'FizzBuzz'.",
        setup: &[],
        verify: &[
            "test -f /home/user/workdir/fizzbuzz.py",
            r#"test "$(python -c 'import sys; sys.path.insert(0, "/home/user/workdir"); from fizzbuzz import fizzbuzz as f; print(",".join(f(16)), f(0))')" = '1,2,Fizz,4,Buzz,Fizz,7,8,Fizz,Buzz,11,Fizz,13,14,FizzBuzz,16 []'"#,
        ],
    },
    Preset {
        name: "pandas_csv",
        title: "the mean of a column of a CSV file, without a network",
        instruction: "Read `/home/user/data/numbers.csv`, a CSV file with one column `x` of integers, with pandas if it \
            can be imported and with Python's csv module otherwise. Write the mean of `x` to \
            `/home/user/workdir/mean.txt` as one decimal number and nothing else.",
        setup: &[
            "mkdir -p /home/user/data",
            r"printf 'x\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n' > /home/user/data/numbers.csv",
        ],
        verify: &[
            "test -f /home/user/workdir/mean.txt",
            r#"test "$(python -c 'print(abs(float(open("/home/user/workdir/mean.txt").read()) - 5.5) < 1e-6)')" = True"#,
        ],
    },
];

impl Preset {
    /// The preset of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// The task.
    #[must_use]
    pub fn task(&self) -> Task {
        let owned = |commands: &[&str]| commands.iter().map(|&command| command.to_owned()).collect();
        Task {
            id: Some(self.name.into()),
            instruction: self.instruction.into(),
            setup: owned(self.setup),
            verify: owned(self.verify),
            agent: AgentSpec::default(),
            limits: Limits {
                agent_timeout_s: 300.0,
                ..Limits::default()
            },
            ..Task::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_valid_task_and_found_by_its_name() {
        for preset in PRESETS {
            assert_eq!(
                preset.task().validate().map_err(|error| error.to_string()),
                Ok(())
            );
            assert_eq!(Preset::named(preset.name), Some(preset));
        }
        assert_eq!(Preset::named("none"), None);
    }
}
