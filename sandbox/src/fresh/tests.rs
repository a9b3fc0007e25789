use super::*;
use std::os::unix::fs::symlink;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_directory_is_made_with_its_parents_and_what_was_there_is_kept_aside() {
    let home = tempfile::tempdir().unwrap();
    let inside = Path::new("logs/verifier");
    make_fresh(home.path(), inside, None).unwrap();
    std::fs::write(home.path().join("logs/verifier/reward.txt"), "1.0").unwrap();
    std::fs::write(home.path().join("logs/kept"), "x").unwrap();
    for round in 1..=3 {
        make_fresh(home.path(), inside, None).unwrap();
        assert_eq!(names(&home.path().join(inside)), Vec::<String>::new());
        assert!(home.path().join(format!("logs/verifier.aside-{round}")).exists());
    }
    assert_eq!(
        std::fs::read_to_string(home.path().join("logs/kept")).unwrap(),
        "x"
    );
}

#[test]
fn links_are_moved_and_not_followed() {
    let home = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), home.path().join("logs")).unwrap();
    make_fresh(home.path(), Path::new("logs/verifier"), None).unwrap();
    assert_eq!(names(outside.path()), Vec::<String>::new());
    assert!(home.path().join("logs").symlink_metadata().unwrap().is_dir());
    assert!(
        home.path()
            .join("logs.aside-1")
            .symlink_metadata()
            .unwrap()
            .is_symlink()
    );
}

#[test]
fn names_that_leave_the_home_are_refused() {
    let home = tempfile::tempdir().unwrap();
    for inside in ["", "..", "../x", "a/../../x", "/etc", "."] {
        assert!(
            make_fresh(home.path(), Path::new(inside), None).is_err(),
            "{inside}"
        );
    }
}

#[test]
fn a_name_as_long_as_may_be_is_moved_too() {
    let home = tempfile::tempdir().unwrap();
    let name = "n".repeat(255);
    std::fs::write(home.path().join(&name), "x").unwrap();
    make_fresh(home.path(), Path::new(&name), None).unwrap();
    assert!(home.path().join(&name).is_dir());
}
