//! Front matter, altered: it is refused, or follows the rules.

use bolero::{check, produce};

use super::*;
use crate::domain::fuzz_support::{altered, cases};

#[test]
fn fuzz_front_matter() {
    let good = "---\nname: a-b\ndescription: >-\n  d\nmetadata: {k: 'v'}\nlist: &x [1, ~]\nagain: *x\n---\n# A\n";
    let alterations = produce::<Vec<_>>().with().len(0..6_usize);
    check!().with_iterations(cases()).with_generator(alterations).for_each(|alterations| {
        let Ok(front) = FrontMatter::parse(&altered(good, alterations), None) else { return };
        assert_eq!(front.name.as_str().parse(), Ok(front.name.clone()));
        assert!((1..=DESCRIPTION_CHARS_MAX).contains(&front.description.chars().count()));
        assert_eq!(front.all["name"], front.name.as_str());
    });
}
