//! The text of a link, altered: it opens what it was minted for, or nothing.

use bolero::{check, produce};
use secrecy::SecretString;

use super::*;
use crate::{
    domain::{
        SafePath,
        fuzz_support::{cases, mutated},
    },
    services::links::UrlSigner,
};

const EXPIRES: i64 = 1_800_000_000;

#[test]
fn fuzz_link_texts() {
    let signer = UrlSigner::new(&[SecretString::from("secret-of-the-test")], "");
    let path = SafePath::from_text("out/é b.txt").expect("a path");
    let good = signer.mint(&"conv-1".parse().expect("an id"), &path, EXPIRES);
    let minted = link(&good.parse().expect("an address"));
    let alterations = produce::<Vec<_>>().with().len(0..4_usize);
    check!().with_iterations(cases()).with_generator(alterations).for_each(|alterations| {
        let text = mutated(&good, alterations);
        let link = Uri::try_from(text.as_slice()).ok().and_then(|uri| link(&uri));
        let opens = link.as_ref().is_some_and(|link| signer.verify(link, EXPIRES - 60).is_ok());
        // A link has several spellings: `%c3` is `%C3`.
        assert_eq!(opens, link == minted, "{link:?}");
        assert!(opens || text != good.as_bytes());
    });
}
