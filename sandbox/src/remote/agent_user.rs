use super::machine::{As, Program};
use super::sandbox::Inside;
use super::scripts;
use crate::{AgentUser, Role, SandboxError};
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;

/// The name of the account.
const NAME: &str = "dressage-agent";

/// Its number is one of these: below are those of images and their users, above those that systemd gives.
const NUMBERS: std::ops::Range<u32> = 20_000..60_000;

/// A user that nothing else in its sandbox is, and that cannot become another: whom programs of agents are. Then no SIGKILL
/// misses one of them, whatever they did, and what is root's or the image's user's is not theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// Its number; that of its group too.
    number: String,
    /// Whose the home is otherwise, as `USER:GROUP`.
    owner: String,
    /// The program that becomes it.
    setpriv: String,
}

/// What becomes of what an agent has left in folders for temporary files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Temporary {
    /// It stays, for the agent's next turn.
    Kept,
    /// It is removed.
    Removed,
}

impl Account {
    /// Reads what [`scripts::HAND_OVER`] says: the account, or why there is none.
    fn read(said: &str) -> Result<Self, String> {
        let mut words = said.trim().splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("-"), Some(first), rest) => Err([first, rest.unwrap_or_default()].join(" ")),
            (Some(number), Some(owner), Some(setpriv)) if setpriv.starts_with('/') => Ok(Self {
                number: number.to_owned(),
                owner: owner.to_owned(),
                setpriv: setpriv.to_owned(),
            }),
            _ => Err("its script said something else".into()),
        }
    }

    /// A program as one of this user's, which root starts.
    pub(super) fn dress(&self, mut program: Program) -> Program {
        let mut argv = vec![
            self.setpriv.clone(),
            format!("--reuid={}", self.number),
            format!("--regid={}", self.number),
            "--clear-groups".into(),
            "--no-new-privs".into(),
            "--".into(),
        ];
        // What changes which libraries a program loads is not for one that is root still: the agent may have written them.
        let loaders: BTreeMap<String, String> = program
            .env
            .extract_if(.., |name, _| is_of_the_loader(name))
            .collect();
        if !loaders.is_empty() {
            argv.push("/usr/bin/env".into());
            argv.extend(loaders.iter().map(|(name, value)| format!("{name}={value}")));
        }
        argv.append(&mut program.argv);
        Program {
            argv,
            who: As::Root,
            ..program
        }
    }
}

fn is_of_the_loader(name: &str) -> bool {
    name.starts_with("LD_") || matches!(name, "GCONV_PATH" | "GLIBC_TUNABLES")
}

/// Variables that name a user.
pub(super) fn name_user(env: &mut BTreeMap<String, String>) {
    for name in ["USER", "LOGNAME"] {
        env.insert(name.into(), NAME.into());
    }
}

/// One that only this sandbox has: where several share the processes of a machine, the end of one's is not that of another's.
fn number_for(sandbox: SandboxId) -> u32 {
    let text = sandbox.to_string();
    // FNV-1a; any spread will do.
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    NUMBERS.start + hash % (NUMBERS.end - NUMBERS.start)
}

impl Inside {
    /// Whom a program of that role is, where that is not the image's user.
    pub(super) fn account(&self, role: Role) -> Option<&Account> {
        match role {
            Role::Agent => self.agent.get().and_then(Option::as_ref),
            Role::Task => None,
        }
    }

    /// Makes the account where that can be done, and gives it the home, and the file of a program's input.
    pub(super) async fn hand_over(&self, input: &str) -> Result<(), SandboxError> {
        if self.agent_user == Some(AgentUser::Default) || self.agent.get() == Some(&None) {
            return Ok(());
        }
        let number = number_for(self.id).to_string();
        let arguments = [number.as_str(), NAME, self.home.as_str(), input];
        let said = self
            .script("hand over", scripts::HAND_OVER, &arguments, As::Root)
            .await?;
        let account = match Account::read(&String::from_utf8_lossy(&said)) {
            Ok(account) => Some(account),
            Err(reason) if self.agent_user == Some(AgentUser::Own) => {
                return Err(SandboxError::Unavailable {
                    backend: self.backend,
                    reason: format!("an agent cannot be a user of its own: {reason}"),
                    remedy: Some("take an image with root and setpriv, or set `agent_user = \"default\"`"),
                });
            }
            Err(reason) => {
                tracing::warn!(
                    sandbox.id = %self.id,
                    sandbox.backend = self.backend,
                    error = %reason,
                    "the agent is no user of its own: its programs are the image's user"
                );
                None
            }
        };
        // The first is right: later the home may be the agent's still.
        let _ = self.agent.set(account);
        Ok(())
    }

    /// Ends everything of the agent's user, and gives the home back.
    pub(super) async fn end_agent(
        &self,
        account: &Account,
        temporary: Temporary,
    ) -> Result<(), SandboxError> {
        let removed = match temporary {
            Temporary::Kept => "",
            Temporary::Removed => "/tmp /var/tmp /dev/shm /run",
        };
        let arguments = [
            account.number.as_str(),
            &account.owner,
            &self.home,
            &account.setpriv,
            removed,
        ];
        self.script("end", scripts::END_AGENT, &arguments, As::Root)
            .await
            .map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        Account {
            number: "20001".into(),
            owner: "1000:1000".into(),
            setpriv: "/usr/bin/setpriv".into(),
        }
    }

    #[test]
    fn an_account_is_read_whole_or_the_reason_is() {
        assert_eq!(Account::read("20001 1000:1000 /usr/bin/setpriv\n"), Ok(account()));
        assert_eq!(
            Account::read("- there is no setpriv\n"),
            Err("there is no setpriv".into())
        );
        for odd in ["", "20001", "20001 0:0", "20001 0:0 setpriv"] {
            assert!(Account::read(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn what_loads_libraries_waits_until_the_program_is_not_root_any_more() {
        let program = Program {
            argv: vec!["agent".into(), "-x".into()],
            env: BTreeMap::from(
                [("LD_PRELOAD", "/home/user/a.so"), ("KEY", "secret")]
                    .map(|(name, value)| (name.to_owned(), value.to_owned())),
            ),
            lifetime: None,
            who: As::User,
        };
        let dressed = account().dress(program);
        assert_eq!(
            dressed.argv,
            [
                "/usr/bin/setpriv",
                "--reuid=20001",
                "--regid=20001",
                "--clear-groups",
                "--no-new-privs",
                "--",
                "/usr/bin/env",
                "LD_PRELOAD=/home/user/a.so",
                "agent",
                "-x"
            ]
        );
        assert_eq!(dressed.who, As::Root);
        assert_eq!(Vec::from_iter(dressed.env.keys()), ["KEY"]);
    }

    #[test]
    fn a_number_is_always_the_same_and_seldom_anothers() {
        let one = SandboxId::new();
        assert_eq!(number_for(one), number_for(one));
        let many: std::collections::BTreeSet<u32> = (0..100).map(|_| number_for(SandboxId::new())).collect();
        assert!(many.len() > 90 && many.iter().all(|number| NUMBERS.contains(number)));
    }
}
