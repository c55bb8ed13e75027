//! Files and folders that a program closed to itself, where the server is not root.

use std::os::unix::fs::PermissionsExt as _;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

/// Without root's right to read and write everywhere.
fn with_rights_of_a_user(test: impl AsyncFnOnce() + Send + 'static) {
    // Threads of a runtime have what the thread has that starts them.
    let test = std::thread::spawn(|| {
        let mut sets = capabilities(None).expect("its capabilities");
        sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, sets).expect("fewer capabilities");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test());
    });
    test.join().expect("it passes");
}

#[test]
fn changes_below_folders_that_are_closed_to_writes_are_stored() {
    with_rights_of_a_user(change_below_closed_folders);
}

#[test]
fn closed_file_is_sent_once_and_removed_with_its_program() {
    with_rights_of_a_user(closed_file);
}

async fn closed_file() {
    let mut scene = Scene::own();
    scene.write("a", b"text").await;
    std::fs::set_permissions(scene.disk_path("a"), std::fs::Permissions::from_mode(0o000)).expect("closed");
    let mut comes_back = file("b", b"of the program");
    if let FileMessage::Entry { mode, .. } = &mut comes_back[0] {
        *mode = 0;
    }
    scene.carry_out(comes_back).await;
    scene.carry_in().await.expect("sent");
    assert_eq!(scene.sandbox.get(&b"a"[..]), Some(&Some(b"text".to_vec())));
    assert!(!scene.sandbox.contains_key(&b"b"[..]), "the sandbox has it");
    assert_eq!(scene.carry_in().await.expect("sent"), 1, "the end alone");
    assert_eq!(scene.read("a").await, Ok(b"text".to_vec()));
    assert_eq!(scene.carry_in().await.expect("sent"), 1, "reading it is no change");
    scene.carry_out([gone("a"), gone("b")]).await;
    assert_eq!(scene.listed().await, [""; 0]);
}

async fn change_below_closed_folders() {
    let mut scene = Scene::own();
    let mode = |scene: &Scene| {
        let about = std::fs::metadata(scene.disk_path("d")).expect("a folder");
        about.permissions().mode() & 0o777
    };
    scene.carry_out([vec![folder_of_mode("d", 0o555)], file("d/a", b"1")].concat()).await;
    assert_eq!(mode(&scene), 0o555);

    // Open only while the program ran, so the folder itself is as it was.
    let changes = [vec![gone("d/a")], file("d/b", b"2"), vec![folder("d/e")], file("d/e/f", b"3")].concat();
    assert_eq!(scene.carry_out(changes).await.left_out, 0);
    assert_eq!((scene.listed().await, mode(&scene)), (vec!["d/b".to_owned(), "d/e/f".to_owned()], 0o555));
    assert_eq!(scene.carry_in().await.expect("sent"), 1, "the sandbox has them");

    let changes = [vec![gone("d/b"), folder("d")], file("d/c", b"4")].concat();
    assert_eq!(scene.carry_out(changes).await.left_out, 0);
    assert_eq!((scene.listed().await, mode(&scene)), (vec!["d/c".to_owned(), "d/e/f".to_owned()], 0o755));
}
