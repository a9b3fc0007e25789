use dressage_wire::ids::SandboxId;
use std::path::{Path, PathBuf};

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    /// Memory, with the swap it may use.
    Memory,
    /// Processes and threads.
    Pids,
    /// Processor time.
    Cpu,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// Which interface a hierarchy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// One hierarchy a controller, or a few.
    One,
    /// One for all.
    Two,
}

/// A mounted hierarchy in which groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(crate) version: Version,
    /// The folder under which groups are made.
    pub(crate) parent: PathBuf,
    /// What it limits; none in the second version's half of a hybrid, which still ends groups at one stroke.
    pub(crate) controllers: Vec<Controller>,
}

/// The hierarchies that this process can use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    pub(crate) all: Vec<Hierarchy>,
}

impl Hierarchies {
    /// Looks at the machine. Empty where this process may not make groups.
    pub(crate) fn detect() -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::from(
            &mounts,
            &own,
            &|path| std::fs::read_to_string(path).ok(),
            &|path| nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).is_ok() && makes_folders(path),
        )
    }

    /// The same from texts: `/proc/self/mountinfo`, `/proc/self/cgroup`, a reader of files, and whether groups can be
    /// made in a folder.
    fn from(
        mounts: &str,
        own: &str,
        read: &dyn Fn(&Path) -> Option<String>,
        can_make: &dyn Fn(&Path) -> bool,
    ) -> Self {
        let mut all = Vec::new();
        for mount in mounts.lines().filter_map(Mount::parse) {
            let Some(inside) = own_group(own, &mount) else {
                continue;
            };
            let found = match mount.version {
                Version::One => {
                    let controllers: Vec<_> = Controller::ALL
                        .into_iter()
                        .filter(|controller| mount.options.iter().any(|option| option == controller.name()))
                        .collect();
                    let parent = mount.folder(&inside);
                    (!controllers.is_empty() && can_make(&parent)).then_some(Hierarchy {
                        version: Version::One,
                        parent,
                        controllers,
                    })
                }
                Version::Two => second_version(&mount, &inside, read, can_make),
            };
            if let Some(found) = found
                && !all.iter().any(|known: &Hierarchy| known.parent == found.parent)
            {
                all.push(found);
            }
        }
        Self { all }
    }

    /// Whether a limit of that kind can be set.
    pub(crate) fn limits(&self, controller: Controller) -> bool {
        self.all
            .iter()
            .any(|hierarchy| hierarchy.controllers.contains(&controller))
    }

    /// For people: `v2`, `v1`, `hybrid`, with what they limit.
    pub(crate) fn describe(&self) -> String {
        let has = |version| self.all.iter().any(|hierarchy| hierarchy.version == version);
        let kind = match (has(Version::One), has(Version::Two)) {
            (true, true) => "hybrid",
            (true, false) => "v1",
            (false, true) => "v2",
            (false, false) => return "none that this user may use".to_owned(),
        };
        let limited: Vec<_> = Controller::ALL
            .into_iter()
            .filter(|controller| self.limits(*controller))
            .map(Controller::name)
            .collect();
        match limited.as_slice() {
            [] => format!("{kind}, no limits"),
            some => format!("{kind}, limits {}", some.join(", ")),
        }
    }
}

/// The nearest group, from our own upwards, whose children are given controllers. Our own usually gives none: a group
/// with processes cannot. Without any, our own is still good for ending groups.
fn second_version(
    mount: &Mount,
    inside: &Path,
    read: &dyn Fn(&Path) -> Option<String>,
    can_make: &dyn Fn(&Path) -> bool,
) -> Option<Hierarchy> {
    let own = mount.folder(inside);
    for folder in own
        .ancestors()
        .take_while(|folder| folder.starts_with(&mount.point))
    {
        let given = read(&folder.join("cgroup.subtree_control")).unwrap_or_default();
        let controllers: Vec<_> = Controller::ALL
            .into_iter()
            .filter(|controller| given.split_whitespace().any(|name| name == controller.name()))
            .collect();
        if !controllers.is_empty() && can_make(folder) {
            return Some(Hierarchy {
                version: Version::Two,
                parent: folder.to_path_buf(),
                controllers,
            });
        }
    }
    can_make(&own).then_some(Hierarchy {
        version: Version::Two,
        parent: own,
        controllers: Vec::new(),
    })
}

/// A line of mountinfo that is a cgroup hierarchy.
struct Mount {
    version: Version,
    point: PathBuf,
    root: PathBuf,
    options: Vec<String>,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ');
        let root = left.nth(3)?;
        let point = left.next()?;
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        let options = right.nth(1)?.split(',').map(str::to_owned).collect();
        Some(Self {
            version,
            point: PathBuf::from(point),
            root: PathBuf::from(root),
            options,
        })
    }
}

impl Mount {
    /// Where a group of the hierarchy is; the root's own path does not end in a slash.
    fn folder(&self, inside: &Path) -> PathBuf {
        self.point.join(inside).components().collect()
    }
}

/// The group this process is in, relative to where its hierarchy is mounted.
fn own_group(own: &str, mount: &Mount) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match mount.version {
            Version::Two => controllers.is_empty(),
            Version::One => controllers
                .split(',')
                .any(|name| !name.is_empty() && mount.options.iter().any(|option| option == name)),
        };
        ours.then(|| PathBuf::from(path))
    })?;
    // A container sees its own group as the mount's root.
    let below = path.strip_prefix(&mount.root).unwrap_or(&path);
    Some(below.strip_prefix("/").unwrap_or(below).to_path_buf())
}

/// Whether a group can really be made: a hierarchy may be mounted read-only whatever its permissions say.
fn makes_folders(path: &Path) -> bool {
    let probe = path.join(format!("dressage-probe-{}", SandboxId::new()));
    std::fs::create_dir(&probe).is_ok() && std::fs::remove_dir(&probe).is_ok()
}

#[cfg(test)]
mod tests;
