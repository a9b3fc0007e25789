use super::*;
use std::os::unix::fs::symlink;

#[test]
fn nothing_there_is_success() {
    let folder = tempfile::tempdir().unwrap();
    remove_tree(&folder.path().join("none")).unwrap();
}

#[test]
fn links_are_removed_and_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "x").unwrap();
    let home = folder.path().join("home");
    std::fs::create_dir_all(home.join("a/b")).unwrap();
    symlink(&outside, home.join("a/link")).unwrap();
    symlink("/nowhere", home.join("dangling")).unwrap();
    remove_tree(&home).unwrap();
    assert!(!home.exists());
    assert_eq!(std::fs::read_to_string(outside.join("kept")).unwrap(), "x");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn directories_without_permissions_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    std::fs::create_dir_all(home.join("a/b/c")).unwrap();
    std::fs::write(home.join("a/b/file"), "x").unwrap();
    for closed in ["a/b", "a", ""] {
        std::fs::set_permissions(home.join(closed), Permissions::from_mode(0o000)).unwrap();
    }
    remove_tree(&home).unwrap();
    assert!(!home.exists());
}

#[test]
fn a_tree_deeper_than_any_path_or_stack_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let name = CString::new("d").unwrap();
    let mut directory = open_directory(&home).unwrap();
    for _ in 0..5_000 {
        nix::sys::stat::mkdirat(&directory, name.as_c_str(), Mode::S_IRWXU).unwrap();
        directory = openat(
            &directory,
            name.as_c_str(),
            OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
    }
    remove_tree(&home).unwrap();
    assert!(!home.exists());
}

#[test]
fn a_removal_that_was_cut_short_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    std::fs::create_dir_all(folder.path().join("home.removing/3/x")).unwrap();
    remove_tree(&home).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
