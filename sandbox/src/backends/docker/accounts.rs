/// The user and group of programs where none of the image's is asked for: one to whom no image gives files, unlike 1000.
pub(super) const USER: u32 = 61_000;

/// The files of an image that name its users and groups; unset where they are no plain files.
pub(super) struct Accounts {
    pub(super) passwd: Option<String>,
    pub(super) group: Option<String>,
}

/// Who programs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Accounts {
    /// Who a user is, given by name or number; our own if none is given. `None` where a name is nobody's.
    pub(super) fn account(&self, user: Option<&str>) -> Option<Account> {
        let own = USER.to_string();
        if let Some(found) = self.line_of(user.unwrap_or(&own)) {
            return Some(found);
        }
        let number = user.unwrap_or(&own).parse().ok()?;
        Some(Account {
            name: "user".into(),
            user: number,
            // As engines have it for a number that is nobody's.
            group: if user.is_some() { 0 } else { USER },
        })
    }

    /// The line of a name or number. Ours is in a group of its own whatever that says.
    pub(super) fn line_of(&self, user: &str) -> Option<Account> {
        let mut lines = self.passwd.as_deref()?.lines();
        lines.find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let &[name, _, number, group, ..] = fields.as_slice() else {
                return None;
            };
            let account = Account {
                name: name.to_owned(),
                user: number.parse().ok()?,
                group: group.parse().ok()?,
            };
            (name == user || number == user).then_some(account)
        })
    }
}

/// Whether a file of accounts has a number.
pub(super) fn names(file: &str, number: u32) -> bool {
    let number = number.to_string();
    file.lines().any(|line| line.split(':').nth(2) == Some(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_by_number_and_ours_needs_no_line() {
        let accounts = Accounts {
            passwd: Some(
                "root:x:0:0:root:/root:/bin/bash\nnode:x:1001:1002::/home/node:/bin/sh\nbroken".into(),
            ),
            group: None,
        };
        let of = |user| {
            accounts
                .account(user)
                .map(|found| (found.name, found.user, found.group))
        };
        assert_eq!(of(Some("root")), Some(("root".into(), 0, 0)));
        assert_eq!(of(Some("node")), Some(("node".into(), 1001, 1002)));
        assert_eq!(of(Some("1001")), Some(("node".into(), 1001, 1002)));
        assert_eq!(of(Some("77")), Some(("user".into(), 77, 0)));
        assert_eq!(of(Some("nobody")), None);
        assert_eq!(of(None), Some(("user".into(), 61_000, 61_000)));
    }
}
