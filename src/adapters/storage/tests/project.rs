//! Project quotas, on file systems that have them: `scripts/check-project-quotas.sh` mounts some in a kernel of its own
//! and runs these tests there, with every right and with those of a server in its container.

use std::fmt::Write as _;

use super::{super::project::project_in, *};
use crate::{domain::packages::Tool, ports::packages::PackageStore as _};

const QUOTA: Usage = Usage { bytes: 16 << 20, entries: 200 };

/// A server on the file system that the script chose as `TMPDIR`.
fn server() -> Fixture {
    let root = tempfile::tempdir().expect("a folder");
    let storage = DiskStorage::at(&root.path().join("root"), users()).expect("a root");
    let storage = Arc::new(storage.with_project_quotas(&QUOTA));
    let conversation = storage.try_create(&id("c")).expect("a conversation");
    Fixture { root, storage, conversation }
}

/// Runs a program in a folder for files as its user, without capabilities. Returns what it printed.
fn program(folder: &DataFolder, script: &str) -> String {
    let uid = folder.uid.to_string();
    let user = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups", "--bounding-set=-all"];
    // A server that is not root is the programs' user itself.
    let user = user.into_iter().filter(|_| root());
    let mut words = user.chain(["perl", "-e", script]);
    let mut command = std::process::Command::new(words.next().expect("a program"));
    let output = command.args(words).current_dir(&folder.path).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Writes up to this many MiB into a file, and prints how many were written.
fn fill(name: &str, mib: u32) -> String {
    format!(
        "open(my $file, '>', '{name}') or do {{ print 0; exit }};
         my $block = 'x' x 1048576; my $written = 0;
         while ($written < {mib} && (syswrite($file, $block) // 0) == length $block) {{ $written++ }}
         print $written;"
    )
}

fn filled(folder: &DataFolder, name: &str, mib: u32) -> u32 {
    program(folder, &fill(name, mib)).parse().expect("a number")
}

fn project(conversation: &Folder) -> u32 {
    project_in(&conversation.files).expect("a project")
}

fn trash_is_empty(fixture: &Fixture) -> bool {
    fixture.storage.drain();
    fs::read_dir(fixture.root.path().join("root/.trash")).expect("a folder").count() == 0
}

#[test]
#[ignore = "scripts/check-project-quotas.sh runs it"]
fn limited_program_is_stopped_and_no_other_conversation_is() {
    let fixture = server();
    let limit = fixture.storage.project_limit().expect("a limit");
    assert!(QUOTA.fits(&limit) && limit.bytes < 2 * QUOTA.bytes && limit.entries < 2 * QUOTA.entries, "{limit:?}");
    let most = u32::try_from(limit.bytes >> 20).expect("a number");
    let data = fixture.conversation.data();
    let written = filled(&data, "big", 64);
    assert!((most - 1..=most).contains(&written), "{written} of {most}");
    assert!(filled(&data, "more", 2) < 2, "nothing more fits");
    assert!(measured(&fixture).bytes > QUOTA.bytes, "the measurement is the verdict");
    let other = fixture.storage.try_create(&id("d")).expect("a conversation");
    assert_eq!(filled(&other.data(), "big", 12), 12);
    fixture.conversation.delete(&path("big")).expect("deleted");
    assert_eq!(filled(&data, "big", 12), 12, "what was deleted is free again");
}

fn measured(fixture: &Fixture) -> Usage {
    fixture.conversation.usage(&disk::EVERYTHING).expect("measured")
}

#[test]
#[ignore = "scripts/check-project-quotas.sh runs it"]
fn limited_are_files_without_a_name_and_names() {
    const FILES_WITHOUT_A_NAME: &str = "
        my ($block, @files) = 'x' x 1048576;
        for (1 .. 64) {
            sysopen(my $file, '.', 0x410002, 0600) or last;
            push @files, $file;
            last if (syswrite($file, $block) // 0) < length $block;
        }
        # A name takes space too.
        splice @files, -2;
        my $number = 0;
        for my $file (@files) {
            my ($from, $to) = ('/proc/self/fd/' . fileno($file), 'late' . $number++);
            syscall(265, -100, $from, -100, $to, 0x400) == 0 or die \"linkat: $!\";
        }
        print $number;";
    const NAMES: &str = "
        my $made = 0;
        while ($made < 1000 && open(my $file, '>', \"n$made\")) { $made++ }
        print $made;";

    let fixture = server();
    let limit = fixture.storage.project_limit().expect("a limit");
    let data = fixture.conversation.data();
    let written: u64 = program(&data, FILES_WITHOUT_A_NAME).parse().expect("a number");
    assert!(written << 20 <= limit.bytes && written << 20 > QUOTA.bytes, "{written} MiB");
    assert!(data.path.join("late0").exists() && measured(&fixture).bytes <= limit.bytes);
    let other = fixture.storage.try_create(&id("d")).expect("a conversation");
    let made: u64 = program(&other.data(), NAMES).parse().expect("a number");
    assert!((QUOTA.entries..=limit.entries).contains(&made), "{made}");
}

#[test]
#[ignore = "scripts/check-project-quotas.sh runs it"]
fn limited_folders_take_what_a_server_moves() {
    let fixture = server();
    let conversation = &fixture.conversation;
    let own = project(conversation);
    conversation.write(&path("a/b/c.txt"), b"one").expect("written");
    conversation.write(&path("a/b/c.txt"), b"two").expect("written over it");
    conversation.make_folders(&path("made/by/server")).expect("made");
    for folder in ["a/b", "made/by/server"] {
        let opened = open_beneath(&conversation.files, folder.as_bytes(), OFlags::RDONLY).expect("a folder");
        assert_eq!(project_in(opened), Some(own), "{folder}");
    }
    // A program and the server move what the other one made.
    let moves = "rename('a/b', 'made/by/program') or die $!; mkdir 'mine'; rename('made/by/program/c.txt', 'mine/c')
        or die $!; link('mine/c', 'a/again') or die $!; print 'moved'";
    assert_eq!(program(&conversation.data(), moves), "moved");
    conversation.move_entry(&path("mine/c"), &path("new/folder/c"), false).expect("moved");
    conversation.link(&path("new/folder/c"), &path("linked")).expect("linked");
    assert_eq!(bytes(conversation.read(&path("linked"))), b"two");
    // An upload that began in another conversation.
    let other = fixture.storage.create(&id("d")).expect("a conversation");
    let mut upload = fixture.storage.create(&id("c")).expect("it is there").incoming().expect("begun");
    upload.append(b"three").expect("written");
    upload.moved_to(other).expect("moved").persist(&path("in/d")).expect("placed");
    let other = fixture.storage.try_create(&id("d")).expect("it is there");
    assert_eq!(bytes(other.read(&path("in/d"))), b"three");
    assert_ne!(project(&other), own);
    conversation.delete(&path("new")).expect("deleted");
    for key in ["c", "d"] {
        assert!(fixture.storage.remove(&id(key)).expect("removed"));
    }
    assert!(trash_is_empty(&fixture));
}

#[test]
#[ignore = "scripts/check-project-quotas.sh runs it"]
fn limited_folder_is_assigned_and_its_id_is_its_own() {
    let fixture = server();
    let mut folder = Arc::clone(&fixture.storage).create_unassigned().expect("a folder");
    fs::write(folder.data().path.join("x"), "1").expect("written");
    let assigned = folder.assign(&id("new")).expect("renamed").expect("the conversation is new");
    assert!(filled(&assigned.data(), "big", 64) < 32);
    let mut projects = std::collections::HashSet::from([project(&fixture.conversation)]);
    assert!(projects.insert(project(&fixture.storage.enter(&id("new")).expect("it is there"))));
    // Deleted folders free their numbers. The last file of each is still open, so its id is in use.
    let mut open = Vec::new();
    for number in 0..20 {
        let key = id(&format!("n{number}"));
        let made = fixture.storage.try_create(&key).expect("a conversation");
        made.write(&path("file"), b"x").expect("written");
        assert!(projects.insert(project(&made)), "{number}");
        open.push(made.read(&path("file")).expect("a file"));
        drop(made);
        fixture.storage.remove(&key).expect("removed");
        assert!(trash_is_empty(&fixture));
    }
}

#[test]
#[ignore = "scripts/check-project-quotas.sh runs it"]
fn limited_conversation_gets_packages() {
    let fixture = server();
    let (storage, owner) = (&fixture.storage, Principal::default());
    for key in ["one", "two"] {
        let stage = Arc::clone(storage).stage(&owner).expect("a folder");
        let tree = stage.data().path.join(".packages/python");
        for number in 0..20 {
            let folder = tree.join(format!("{number}/in/deep"));
            fs::create_dir_all(&folder).expect("folders");
            fs::write(folder.join("code.py"), key).expect("written");
        }
        // More than one conversation may hold.
        fs::write(tree.join("large"), vec![1; 24 << 20]).expect("an installation has no such limit");
        stage.keep(Tool::Uv, key, &disk::EVERYTHING).expect("kept");
        fs::remove_file(fixture.root.path().join(format!("root/.packages/default/{key}/tree/large"))).expect("removed");
        storage.put(key, &id("c"), Tool::Uv).expect("placed");
        let mut text = String::new();
        for number in 0..20 {
            let file = fixture.data().join(format!(".packages/python/{number}/in/deep/code.py"));
            write!(text, "{} ", fs::read_to_string(file).expect("a file")).expect("text");
        }
        assert_eq!(text, format!("{key} ").repeat(20));
    }
    assert!(trash_is_empty(&fixture), "the first tree is gone");
    fixture.conversation.delete(&path(".packages")).expect("deleted");
    assert!(trash_is_empty(&fixture), "and so is the second one, which has no project in a folder that has one");
    let written = filled(&fixture.conversation.data(), "big", 64);
    assert!(written < 32, "{written}");
}

/// A server that ends the limit of its trial project does not end this one.
#[test]
#[ignore = "scripts/check-project-quotas.sh runs it"]
fn limited_root_within_a_project_keeps_its_limit() {
    let fixture = server();
    let within = DiskStorage::at(&fixture.data().join("root"), users()).expect("a root").with_project_quotas(&QUOTA);
    assert_eq!(within.project_limit(), None);
    let written = filled(&fixture.conversation.data(), "big", 64);
    assert!(written < 32, "{written}");
}

#[test]
#[ignore = "scripts/check-project-quotas.sh runs it"]
fn unlimited_folders_get_no_project() {
    let fixture = server();
    assert_eq!(fixture.storage.project_limit(), None);
    assert_eq!(project_in(&fixture.conversation.files), None);
    fixture.conversation.write(&path("a/b"), b"x").expect("written");
    assert_eq!(filled(&fixture.conversation.data(), "big", 30), 30);
}
