use super::*;

const SIZE: Size = Size {
    memory_bytes: 1 << 30,
    cpus: 1.5,
    pids: 100,
};

fn hierarchy(version: Version, parent: &Path, controllers: &[Controller]) -> Hierarchy {
    Hierarchy {
        version,
        parent: parent.to_path_buf(),
        controllers: controllers.to_vec(),
    }
}

#[test]
fn limits_are_written_in_the_words_of_each_version() {
    let all = [Controller::Memory, Controller::Pids, Controller::Cpu];
    let texts = |version| -> Vec<String> {
        limits(&hierarchy(version, Path::new("/"), &all), SIZE)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    };
    assert_eq!(
        texts(Version::Two),
        [
            "memory.max=1073741824",
            "memory.swap.max=0",
            "pids.max=100",
            "cpu.max=150000 100000"
        ]
    );
    assert_eq!(
        texts(Version::One),
        [
            "memory.limit_in_bytes=1073741824",
            "memory.memsw.limit_in_bytes=1073741824",
            "pids.max=100",
            "cpu.cfs_period_us=100000",
            "cpu.cfs_quota_us=150000",
        ]
    );
}

#[test]
fn a_limit_that_cannot_be_set_is_named() {
    let folder = tempfile::tempdir().unwrap();
    // A folder that is no control group: its files cannot be made by writing to them in a folder without permissions.
    let missing = folder.path().join("none").join("pids.max");
    let error = set_limit(&missing, "1").unwrap_err();
    assert!(error.to_string().contains("pids.max"), "{error}");
    set_limit(&folder.path().join("none").join("memory.swap.max"), "0").unwrap();
}

#[test]
fn the_second_version_is_planned_first_and_a_group_that_is_gone_is_removed() {
    let hierarchies = Hierarchies {
        all: vec![
            hierarchy(Version::One, Path::new("/one"), &[Controller::Memory]),
            hierarchy(Version::Two, Path::new("/two"), &[]),
        ],
    };
    assert_eq!(
        Cgroup::plan(&hierarchies, "x"),
        [PathBuf::from("/two/x"), PathBuf::from("/one/x")]
    );
    Cgroup::remove(Path::new("/no/such/group")).unwrap();
}
