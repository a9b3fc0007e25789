use super::*;

const HYBRID: &str = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

const HYBRID_OWN: &str = "\
9:name=systemd:/
8:pids:/
4:memory:/api/802
1:cpu:/
0::/
";

fn parents(hierarchies: &Hierarchies) -> Vec<(&str, Version, &[Controller])> {
    hierarchies
        .all
        .iter()
        .map(|hierarchy| {
            (
                hierarchy.parent.to_str().unwrap(),
                hierarchy.version,
                hierarchy.controllers.as_slice(),
            )
        })
        .collect()
}

#[test]
fn a_hybrid_limits_by_the_first_version_and_ends_groups_by_the_second() {
    let found = Hierarchies::from(HYBRID, HYBRID_OWN, &|_| None, &|_| true);
    assert_eq!(
        parents(&found),
        [
            ("/sys/fs/cgroup/cpu", Version::One, &[Controller::Cpu][..]),
            (
                "/sys/fs/cgroup/memory/api/802",
                Version::One,
                &[Controller::Memory]
            ),
            ("/sys/fs/cgroup/pids", Version::One, &[Controller::Pids]),
            ("/sys/fs/cgroup/unified", Version::Two, &[]),
        ]
    );
    assert_eq!(found.describe(), "hybrid, limits memory, pids, cpu");
}

#[test]
fn an_ordinary_user_has_none() {
    let found = Hierarchies::from(HYBRID, HYBRID_OWN, &|_| None, &|_| false);
    assert_eq!(found, Hierarchies::default());
    assert_eq!(found.describe(), "none that this user may use");
}

const SECOND: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

fn controllers_of(folder: &'static str, given: &'static str) -> impl Fn(&Path) -> Option<String> {
    move |path| (path == Path::new(folder).join("cgroup.subtree_control")).then(|| given.to_owned())
}

#[test]
fn the_second_version_uses_the_nearest_group_that_gives_controllers_to_its_children() {
    let own = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n";
    let app = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice";
    let found = Hierarchies::from(SECOND, own, &controllers_of(app, "memory pids\n"), &|_| true);
    assert_eq!(
        parents(&found),
        [(app, Version::Two, &[Controller::Memory, Controller::Pids][..])]
    );
    assert_eq!(found.describe(), "v2, limits memory, pids");
}

#[test]
fn the_second_version_without_delegation_still_ends_groups() {
    let found = Hierarchies::from(SECOND, "0::/a/b\n", &|_| None, &|_| true);
    assert_eq!(parents(&found), [("/sys/fs/cgroup/a/b", Version::Two, &[][..])]);
    assert_eq!(found.describe(), "v2, no limits");
}

#[test]
fn a_container_that_sees_its_own_group_as_the_root_stays_in_it() {
    let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    let found = Hierarchies::from(mounts, "4:memory:/docker/abc\n", &|_| None, &|_| true);
    assert_eq!(
        parents(&found),
        [("/sys/fs/cgroup/memory", Version::One, &[Controller::Memory][..])]
    );
}

#[test]
fn two_controllers_on_one_mount_make_one_group() {
    let mounts = "35 31 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
    let found = Hierarchies::from(mounts, "4:cpu,cpuacct:/x\n", &|_| None, &|_| true);
    assert_eq!(
        parents(&found),
        [(
            "/sys/fs/cgroup/cpu,cpuacct/x",
            Version::One,
            &[Controller::Cpu][..]
        )]
    );
}

#[test]
fn texts_that_are_no_tables_give_nothing() {
    let found = Hierarchies::from("nonsense\n - \n1 2 3", "x\n:\n", &|_| None, &|_| true);
    assert_eq!(found, Hierarchies::default());
}
