//! Archives, altered: what is accepted keeps every bound and is a skill.

use std::io::{Cursor, Write as _};

use bolero::{check, produce};
use zip::{ZipWriter, write::SimpleFileOptions};

use super::*;
use crate::domain::fuzz_support::{cases, mutated};

#[test]
fn fuzz_skill_archives() {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, text) in [("x/SKILL.md", "---\nname: x\ndescription: d\n---\n"), ("x/scripts/run.py", "print(1)\n")] {
        zip.start_file(path, SimpleFileOptions::default()).expect("an entry");
        zip.write_all(text.as_bytes()).expect("written");
    }
    let good = zip.finish().expect("a zip").into_inner();
    let name: SkillName = "x".parse().expect("a name");
    assert!(super::check(&good, &name).is_ok());
    let alterations = produce::<Vec<_>>().with().len(0..6_usize);
    check!().with_iterations(cases()).with_generator(alterations).for_each(|alterations| {
        let Ok((files, front)) = super::check(&mutated(&good, alterations), &name) else { return };
        assert_eq!(front.name, name);
        assert!(files.len() <= SKILL_ENTRIES_MAX);
        assert!(files.iter().map(|file| file.bytes.len() as u64).sum::<u64>() <= SKILL_BYTES_MAX);
        assert!(files.iter().all(|file| file.path.components().all(|part| !part.starts_with(b"-"))));
    });
}
