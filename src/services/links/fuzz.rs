//! Fuzz targets: a link that was not minted is refused.

use bolero::{TypeGenerator, check, produce};

use super::{
    Rejected::{Expired, Malformed, Signature, TooFarAhead},
    *,
};
use crate::domain::fuzz_support::{Mutation, cases, mutated};

const EXPIRES: i64 = 1_800_000_000;
const CONVERSATION: &str = "conversation";
const PATH: &str = "a/report.csv";

fn signer(secrets: &[&str]) -> UrlSigner {
    let secrets: Vec<_> = secrets.iter().map(|&secret| SecretString::from(secret)).collect();
    UrlSigner::new(&secrets, "")
}

/// A link that was not minted.
#[derive(Debug, TypeGenerator)]
struct ForgedLink {
    conversation: Vec<u8>,
    names: Vec<Vec<u8>>,
    expires: Expires,
    signature: Signed,
    now: i64,
}

#[derive(Debug, TypeGenerator)]
enum Expires {
    Number(u64),
    Text(String),
}

#[derive(Debug, TypeGenerator)]
enum Signed {
    Whole([u8; 32]),
    Text(String),
}

#[test]
fn fuzz_links() {
    let signer = signer(&["one"]);
    check!().with_iterations(cases()).with_type::<ForgedLink>().for_each(|sent| {
        let expires = match &sent.expires {
            Expires::Number(number) => number.to_string(),
            Expires::Text(text) => text.clone(),
        };
        let signature = match &sent.signature {
            Signed::Whole(bytes) => URL_SAFE_NO_PAD.encode(bytes),
            Signed::Text(text) => text.clone(),
        };
        let link = SignedLink {
            conversation: sent.conversation.clone(),
            components: sent.names.clone(),
            expires,
            signature,
            bytes_max: None,
        };
        let result = signer.verify(&link, sent.now);
        assert!(matches!(result, Err(Signature | Malformed)), "{result:?}");
    });
}

#[derive(Debug, TypeGenerator)]
enum Used {
    /// Seconds before the expiry.
    Before(#[generator(-9_i64..=URL_TTL_S_MAX + 9)] i64),
    At(i64),
}

/// A link is valid if and only if every byte is as minted and the time is within its lifetime.
#[test]
fn fuzz_altered_links() {
    let (old, both) = (signer(&["old"]), signer(&["new", "old"]));
    let minted = [&old, &both].map(|by| {
        let (conversation, path) = (CONVERSATION.parse().expect("an id"), SafePath::from_text(PATH).expect("a path"));
        let url = by.mint(&conversation, &path, EXPIRES);
        [CONVERSATION, PATH, &EXPIRES.to_string(), url.split_once("&sig=").expect("a signature").1].map(str::to_owned)
    });
    let alterations = produce::<Vec<(u8, Mutation)>>().with().len(0..4_usize);
    let inputs = (produce::<bool>(), alterations, produce::<Used>());
    check!().with_iterations(cases()).with_generator(inputs).for_each(|(by_both, alterations, used)| {
        let good = &minted[usize::from(*by_both)];
        let mut number = 0;
        let sent = good.each_ref().map(|field| {
            let own: Vec<_> = alterations.iter().filter(|(at, _)| at % 4 == number).map(|(_, how)| *how).collect();
            number += 1;
            mutated(field, &own)
        });
        let now = match *used {
            Used::Before(seconds) => EXPIRES - seconds,
            Used::At(now) => now,
        };
        let components = sent[1].split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect();
        let [_, _, expires, signature] = sent.each_ref().map(|field| String::from_utf8_lossy(field).into_owned());
        let link = SignedLink { conversation: sent[0].clone(), components, expires, signature, bytes_max: None };
        let result = both.verify(&link, now).map(drop);
        let is_whole = good.iter().zip(&sent).all(|(good, sent)| good.as_bytes() == sent);
        match i128::from(EXPIRES) - i128::from(now) {
            _ if !is_whole => assert!(matches!(result, Err(Signature | Malformed)), "{result:?}"),
            ..=0 => assert_eq!(result, Err(Expired)),
            left if left <= i128::from(URL_TTL_S_MAX) => assert_eq!(result, Ok(())),
            _ => assert_eq!(result, Err(TooFarAhead)),
        }
    });
}
