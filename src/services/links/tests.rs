//! The form of links, and the refusal of forged ones.

use super::{
    Rejected::{Expired, Malformed, Signature, TooFarAhead},
    *,
};
use crate::domain::test_scale::rounds;

const NOW: i64 = 1_800_000_000;
const EXPIRES: i64 = NOW + 3600;

fn signer(secrets: &[&str]) -> UrlSigner {
    let secrets: Vec<_> = secrets.iter().map(|&secret| SecretString::from(secret)).collect();
    UrlSigner::new(&secrets, "https://x.example/")
}

fn mint(signer: &UrlSigner, conversation: &str, path: &str, expires: i64) -> String {
    signer.mint(&conversation.parse().expect("an id"), &SafePath::from_text(path).expect("a path"), expires)
}

/// The signature in a link.
fn signature(url: &str) -> String {
    url.split_once("&sig=").expect("a signature").1.to_owned()
}

fn verify(
    signer: &UrlSigner,
    conversation: &str,
    path: &str,
    expires: &str,
    sig: &str,
    now: i64,
) -> Result<(), Rejected> {
    let components = path.split('/').map(|name| name.as_bytes().to_vec()).collect();
    let (expires, signature) = (expires.to_owned(), sig.to_owned());
    let link =
        SignedLink { conversation: conversation.as_bytes().to_vec(), components, expires, signature, bytes_max: None };
    let opened = signer.verify(&link, now)?;
    let wanted = (conversation.parse().expect("an id"), SafePath::from_text(path).expect("a path"));
    assert_eq!(opened, LinkTarget::File(wanted.0, wanted.1));
    Ok(())
}

#[test]
fn minted_link_verifies() {
    let signer = signer(&["one"]);
    let url = mint(&signer, "c", "a b/é.txt", EXPIRES);
    let sig = signature(&url);
    assert_eq!(url, format!("https://x.example/files/c/a%20b/%C3%A9.txt?expires={EXPIRES}&sig={sig}"));
    assert_eq!(sig.len(), 43);
    assert_eq!(verify(&signer, "c", "a b/é.txt", &EXPIRES.to_string(), &sig, NOW), Ok(()));
    assert!(!format!("{signer:?}").contains("one"));
}

/// Computed once by another implementation: a change would invalidate every existing link.
#[test]
fn link_form_and_signed_text_are_stable() {
    for (key, signature) in [
        ("conv-1", "Vini0ngy_RIMsNVGLG57bNlvmBdnn2mIa_Tgx8k0D_8"),
        ("@other/conv-1", "Dg5lji0msSHPL0dB74FOthrsjT0bVGSjAdMeBUggxBE"),
    ] {
        let url = mint(&signer(&["0123456789abcdef"]), key, "out/report.csv", EXPIRES);
        let form = format!("https://x.example/files/{key}/out/report.csv?expires={EXPIRES}&sig={signature}");
        assert_eq!(url, form);
    }
}

#[test]
fn link_is_valid_for_its_owner_only() {
    let signer = signer(&["one"]);
    let exp = EXPIRES.to_string();
    for key in ["c", "@other/c", "@third/c"] {
        let sig = signature(&mint(&signer, key, "f", EXPIRES));
        for sent in ["c", "@other/c", "@third/c"] {
            let expected = if sent == key { Ok(()) } else { Err(Signature) };
            assert_eq!(verify(&signer, sent, "f", &exp, &sig, NOW), expected, "{key} as {sent}");
        }
    }
}

#[test]
fn verify_refuses_altered_links() {
    let signer = signer(&["one"]);
    let good = signature(&mint(&signer, "c", "a/b.txt", EXPIRES));
    let exp = EXPIRES.to_string();
    let refused = |conversation: &str, path: &str, expires: &str, sig: &str, why: Rejected| {
        let result = verify(&signer, conversation, path, expires, sig, NOW);
        // A reversed signature may be canonical base64url by chance.
        let fits = result == Err(why) || (why == Malformed && result == Err(Signature) && sig.len() == 43);
        assert!(fits, "{conversation:?} {path:?} {expires:?} {sig:?}: {result:?}, not {why:?}");
    };
    for conversation in ["d", "C", "", "ca", "c\0", "cc", " c"] {
        refused(conversation, "a/b.txt", &exp, &good, Signature);
    }
    refused("c/a", "b.txt", &exp, &good, Signature);

    let others = ["a/b.tx", "a/b.txt ", "a/B.txt", "A/b.txt", "ab.txt", "a\\b.txt", "b.txt", "a"];
    for path in others.into_iter().chain(["a%2fb.txt", "a/b.txt/c", "c/a/b.txt"]) {
        refused("c", path, &exp, &good, Signature);
    }
    for path in ["", "a//b.txt", "/a/b.txt", "a/b.txt/", "a/./b.txt", "a/x/../b.txt", "../c/a/b.txt", "a/b.txt\0"] {
        refused("c", path, &exp, &good, Malformed);
    }

    for expires in [EXPIRES + 1, EXPIRES - 1, i64::MAX, 1] {
        refused("c", "a/b.txt", &expires.to_string(), &good, Signature);
    }
    let (nines, hex) = ("9".repeat(20), format!("0x{EXPIRES:x}"));
    let odd = ["", "0", "9223372036854775808", "18446744073709551616", &nines, &hex, "1e9", "1_800_003_600", "１８"];
    for expires in odd {
        refused("c", "a/b.txt", expires, &good, Malformed);
    }
    let around = [("0", ""), ("+", ""), ("-", ""), (" ", ""), ("", " "), ("", "\n"), ("", "\0"), ("", ".0")];
    for (before, after) in around {
        refused("c", "a/b.txt", &format!("{before}{exp}{after}"), &good, Malformed);
    }

    let foreign = signature(&mint(&self::signer(&["two"]), "c", "a/b.txt", EXPIRES));
    for sig in [foreign, "A".repeat(43)] {
        refused("c", "a/b.txt", &exp, &sig, Signature);
    }
    let last = |c: char| format!("{}{c}", &good[..42]);
    // The last of 43 characters carries two bits that are not part of the signature: no other text form may pass.
    let twins = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['-', '_']).map(last);
    for twin in twins.filter(|twin| *twin != good) {
        assert!(verify(&signer, "c", "a/b.txt", &exp, &twin, NOW).is_err(), "{twin}");
    }
    let cut = [0, 1, 2, 22, 42].map(|n| good[..n].to_owned());
    let around = [("", "="), ("", "A"), ("", good.as_str()), (" ", ""), ("", "\n"), ("", "%00")];
    let around = around.map(|(before, after)| format!("{before}{good}{after}"));
    let full = ["=".repeat(43), "!".repeat(43), "+/".repeat(21) + "A", "é".repeat(21) + "A", last('=')];
    let standard = base64::engine::general_purpose::STANDARD.encode(URL_SAFE_NO_PAD.decode(&good).expect("bytes"));
    let others = [standard, "0123456789abcdef".repeat(4), good.chars().rev().collect(), "none".to_owned()];
    for sig in cut.iter().chain(&around).chain(&full).chain(&others) {
        refused("c", "a/b.txt", &exp, sig, Malformed);
    }

    let at = |expires: i64, now| {
        verify(&signer, "c", "f", &expires.to_string(), &signature(&mint(&signer, "c", "f", expires)), now)
    };
    assert_eq!(at(EXPIRES, EXPIRES - 1), Ok(()));
    assert_eq!(at(EXPIRES, EXPIRES), Err(Expired));
    assert_eq!(at(EXPIRES, i64::MAX), Err(Expired));
    assert_eq!(at(NOW + URL_TTL_S_MAX, NOW), Ok(()));
    assert_eq!(at(NOW + URL_TTL_S_MAX + 1, NOW), Err(TooFarAhead));
    assert_eq!(at(i64::MAX, NOW), Err(TooFarAhead));
    assert_eq!(at(i64::MAX, i64::MIN), Err(TooFarAhead));
    // The clock was set back: still valid, but not beyond a week.
    assert_eq!(at(EXPIRES, NOW - 3600), Ok(()));
}

#[test]
fn an_archive_link_is_no_link_to_a_file() {
    let signer = signer(&["one"]);
    let key: ConversationKey = "@other/c".parse().expect("an id");
    let url = signer.mint_archive(&key, EXPIRES);
    assert_eq!(url, format!("https://x.example/files/@other/c?expires={EXPIRES}&sig={}", signature(&url)));
    let link = |conversation: &str, components: &[&str], url: &str| SignedLink {
        conversation: conversation.as_bytes().to_vec(),
        components: components.iter().map(|name| name.as_bytes().to_vec()).collect(),
        expires: EXPIRES.to_string(),
        signature: signature(url),
        bytes_max: None,
    };
    assert_eq!(signer.verify(&link("@other/c", &[], &url), NOW), Ok(LinkTarget::Archive(key)));
    assert_eq!(signer.verify(&link("@other/c", &[], &url), EXPIRES), Err(Expired));
    for other in ["c", "@other/d"] {
        assert_eq!(signer.verify(&link(other, &[], &url), NOW), Err(Signature), "{other}");
    }
    assert_eq!(signer.verify(&link("@other/c", &["f"], &url), NOW), Err(Signature));
    let file = mint(&signer, "@other/c", "f", EXPIRES);
    assert_eq!(signer.verify(&link("@other/c", &[], &file), NOW), Err(Signature));
}

#[test]
fn signed_fields_are_delimited() {
    let signer = signer(&["one"]);
    let one = signature(&mint(&signer, "a", "bc", EXPIRES));
    let two = signature(&mint(&signer, "ab", "c", EXPIRES));
    assert_ne!(one, two);
    assert_eq!(verify(&signer, "ab", "c", &EXPIRES.to_string(), &one, NOW), Err(Rejected::Signature));
}

#[test]
fn verify_refuses_a_slash_inside_a_name() {
    let signer = signer(&["one"]);
    let sig = signature(&mint(&signer, "c", "a/b", EXPIRES));
    let components = vec![b"a/b".to_vec()];
    let link = SignedLink {
        conversation: b"c".to_vec(),
        components,
        expires: EXPIRES.to_string(),
        signature: sig,
        bytes_max: None,
    };
    assert_eq!(signer.verify(&link, NOW), Err(Rejected::Malformed));
}

#[test]
fn every_secret_verifies_and_the_first_signs() {
    let (old, both, new) = (signer(&["old"]), signer(&["new", "old"]), signer(&["new"]));
    let exp = EXPIRES.to_string();
    let from_old = signature(&mint(&old, "c", "f", EXPIRES));
    let from_both = signature(&mint(&both, "c", "f", EXPIRES));
    assert_eq!(verify(&both, "c", "f", &exp, &from_old, NOW), Ok(()));
    assert_eq!(verify(&both, "c", "f", &exp, &from_both, NOW), Ok(()));
    assert_eq!(verify(&new, "c", "f", &exp, &from_both, NOW), Ok(()));
    assert_eq!(verify(&new, "c", "f", &exp, &from_old, NOW), Err(Rejected::Signature));
    assert_eq!(verify(&old, "c", "f", &exp, &from_both, NOW), Err(Rejected::Signature));
    let (none, other) = (signer(&[]), signer(&[]));
    let made_up = signature(&mint(&none, "c", "f", EXPIRES));
    assert_eq!(verify(&none, "c", "f", &exp, &made_up, NOW), Ok(()));
    assert_eq!(verify(&other, "c", "f", &exp, &made_up, NOW), Err(Rejected::Signature));
}

/// Links that differ from a valid one in a byte, or have a random signature.
#[test]
fn verify_refuses_random_signatures_and_altered_bytes() {
    let count = rounds(20_000, 1_000_000);
    let signer = signer(&["one", "two"]);
    let expires = EXPIRES.to_string();
    let good = signature(&mint(&signer, "conversation", "a/report.csv", EXPIRES));
    assert_eq!(verify(&signer, "conversation", "a/report.csv", &expires, &good, NOW), Ok(()));
    let fields = [b"conversation".to_vec(), b"a/report.csv".to_vec(), expires.into_bytes(), good.into_bytes()];
    // SplitMix64: the same numbers each time.
    let mut state = 0_u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let (mut altered, mut random) = (0_u32, 0_u32);
    while altered + random < count {
        let mut sent = fields.clone();
        if next() % 2 == 0 {
            let [at, by, ..] = next().to_le_bytes().map(usize::from);
            let field = &mut sent[by % 4];
            let at = at % field.len();
            let [other, ..] = next().to_le_bytes();
            // XOR with a non-zero byte always changes it.
            field[at] ^= other.max(1);
            altered += 1;
        } else {
            let bytes = [next(), next(), next(), next()].map(u64::to_be_bytes).concat();
            sent[3] = URL_SAFE_NO_PAD.encode(bytes).into_bytes();
            random += 1;
        }
        let [conversation, path, expires, sig] = sent;
        let components = path.split(|&b| b == b'/').map(<[u8]>::to_vec).collect();
        let [expires, signature] = [expires, sig].map(|text| String::from_utf8_lossy(&text).into_owned());
        let link = SignedLink { conversation, components, expires, signature, bytes_max: None };
        assert!(signer.verify(&link, NOW).is_err(), "{link:?}");
    }
    println!("{altered} altered links and {random} random signatures, none was accepted");
}

/// A link as it is sent.
fn taken_apart(url: &str) -> SignedLink {
    let (path, query) = url.split_once("/files/").and_then(|(_, rest)| rest.split_once('?')).expect("a link");
    let value =
        |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned);
    let (conversation, path) = path.split_once('/').expect("a path");
    SignedLink {
        conversation: conversation.into(),
        components: path.split('/').map(|name| name.as_bytes().to_vec()).collect(),
        expires: value("expires").expect("an expiry"),
        signature: value("sig").expect("a signature"),
        bytes_max: value("max"),
    }
}

#[test]
fn link_for_an_upload_is_bound_to_its_length_and_reads_nothing() {
    let signer = signer(&["one"]);
    let (key, path) = ("c".parse().expect("an id"), SafePath::from_text("a/b").expect("a path"));
    let upload = taken_apart(&signer.mint_upload(&key, &path, EXPIRES, 1000).expect("a link"));
    assert_eq!(signer.verify(&upload, NOW), Ok(LinkTarget::Upload(key.clone(), path.clone(), 1000)));
    assert_eq!(signer.verify(&upload, EXPIRES), Err(Rejected::Expired));
    let with = |bytes_max: Option<&str>| SignedLink { bytes_max: bytes_max.map(str::to_owned), ..upload.clone() };
    assert_eq!(signer.verify(&with(None), NOW), Err(Rejected::Signature));
    for (bytes_max, why) in [("1001", Rejected::Signature), ("01000", Rejected::Malformed), ("", Rejected::Malformed)] {
        assert_eq!(signer.verify(&with(Some(bytes_max)), NOW), Err(why), "{bytes_max}");
    }
    let read = taken_apart(&signer.mint(&key, &path, EXPIRES));
    assert_eq!(signer.verify(&read, NOW), Ok(LinkTarget::File(key, path)));
    let all = SignedLink { components: Vec::new(), ..upload };
    assert_eq!(signer.verify(&all, NOW), Err(Rejected::Signature));
    let bounded = SignedLink { bytes_max: Some("1000".to_owned()), ..read };
    assert_eq!(signer.verify(&bounded, NOW), Err(Rejected::Signature));
}

#[test]
fn named_by_reads_what_mint_wrote() {
    let path = SafePath::from_components([&b"d"[..], b"a b%\xff?.txt"]).expect("a path");
    let (here, there) = (signer(&["one"]), signer(&["one"]).in_folder(Path::new("/var/sand boxes")));
    for key in ["c", "@other/c"] {
        let key: ConversationKey = key.parse().expect("a key");
        for signer in [&here, &there] {
            assert_eq!(signer.named_by(&signer.mint(&key, &path, EXPIRES)), Some((key.clone(), path.clone())));
        }
    }
    let key = "c".parse().expect("a key");
    assert_eq!(there.mint_upload(&key, &path, EXPIRES, 1000), None, "there is no server that takes it");
    assert_eq!(there.mint(&key, &path, EXPIRES), "file:///var/sand%20boxes/c/files/d/a%20b%25%FF%3F.txt");
    for other in ["", "http://evil.test/files/c/a", "file:///etc/passwd", "file:///var/sand%20boxes/c/files/../x"] {
        assert_eq!((here.named_by(other), there.named_by(other)), (None, None), "{other}");
    }
}
