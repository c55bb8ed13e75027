//! How a file is presented to a browser: under which type and name, shown or saved.
//!
//! Only pictures without scripts and plain text are shown. Everything else is saved, and a media type that a browser
//! could execute or render as a document is not sent.

use percent_encoding::utf8_percent_encode;

use crate::{
    domain::path::{RESERVED, is_misleading},
    services::files::OCTET_STREAM,
};

/// What is shown in the window.
const SHOWN: [&str; 5] = ["image/png", "image/jpeg", "image/gif", "image/webp", "text/plain; charset=utf-8"];

/// What is saved under its own type, because programs choose by it what to open the file with.
const SAVED: [&str; 32] = [
    "application/gzip",
    "application/json",
    "application/jsonl",
    "application/msword",
    "application/pdf",
    "application/vnd.apache.arrow.file",
    "application/vnd.apache.parquet",
    "application/vnd.ms-excel",
    "application/vnd.ms-powerpoint",
    "application/vnd.oasis.opendocument.spreadsheet",
    "application/vnd.oasis.opendocument.text",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/x-7z-compressed",
    "application/x-bzip2",
    "application/x-ipynb+json",
    "application/x-tar",
    "application/zip",
    "audio/mpeg",
    "audio/ogg",
    "audio/wav",
    "image/avif",
    "image/bmp",
    "image/tiff",
    "text/csv; charset=utf-8",
    "text/markdown; charset=utf-8",
    "text/tab-separated-values; charset=utf-8",
    "text/typescript; charset=utf-8",
    "text/x-python; charset=utf-8",
    "video/mp4",
    "video/webm",
];

/// The values of `Content-Type` and `Content-Disposition`. Both are visible ASCII whatever the name is.
pub(super) fn present(media_type: &str, name: &[u8]) -> (&'static str, String) {
    let find = |table: &[&'static str]| {
        let essence = |sent: &str| sent.split(';').next() == Some(media_type);
        table.iter().copied().find(|sent| essence(sent))
    };
    let (content_type, way) = match (find(&SHOWN), find(&SAVED)) {
        (Some(shown), _) => (shown, "inline"),
        (None, Some(saved)) => (saved, "attachment"),
        (None, None) => (OCTET_STREAM, "attachment"),
    };
    let name = harmless(name);
    let fallback: String = name.chars().map(|c| if is_simple(c) { c } else { '_' }).collect();
    // A parameter of RFC 8187 may hold what a path may.
    let encoded = utf8_percent_encode(&name, RESERVED);
    (content_type, format!("{way}; filename=\"{fallback}\"; filename*=UTF-8''{encoded}"))
}

/// A name that shows what it is and that no system takes for a path.
fn harmless(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let replace = |c: char| is_misleading(c) || c == char::REPLACEMENT_CHARACTER || "\\/:*?\"<>|".contains(c);
    let name: String = name.chars().map(|c| if replace(c) { '_' } else { c }).collect();
    if name.chars().all(|c| matches!(c, '.' | ' ')) { "download".to_owned() } else { name }
}

fn is_simple(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ' ' | '-')
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    use super::*;
    use crate::services::files::media_type;

    #[test]
    fn executable_types_are_attachments_without_their_type() {
        for name in [
            "x.html",
            "x.HTM",
            "x.xhtml",
            "x.svg",
            "x.svgz",
            "x.xml",
            "x.js",
            "x.mjs",
            "x.wasm",
            "x.mht",
            "x.swf",
            "x.css",
            "x.xsl",
            "x.rdf",
            "x.hta",
            "x",
            "x.unknown",
            "x.ics",
            "x.vtt",
            "x.atom",
            "x.json5",
            "x.manifest",
        ] {
            let (sent, disposition) = present(media_type(name.as_bytes()), name.as_bytes());
            assert_eq!(sent, OCTET_STREAM, "{name}");
            assert!(disposition.starts_with("attachment; "), "{name}");
        }
        for (name, sent) in
            [("x.pdf", "application/pdf"), ("x.csv", "text/csv; charset=utf-8"), ("x.json", "application/json")]
        {
            let presented = present(media_type(name.as_bytes()), name.as_bytes());
            assert_eq!((presented.0, presented.1.starts_with("attachment; ")), (sent, true), "{name}");
        }
        for name in ["x.png", "x.jpg", "x.jpeg", "x.gif", "x.webp", "x.txt", "x.log"] {
            assert!(present(media_type(name.as_bytes()), name.as_bytes()).1.starts_with("inline; "), "{name}");
        }
    }

    #[test]
    fn names() {
        let table: [(&[u8], &str); 9] = [
            (b"a b.csv", "filename=\"a b.csv\"; filename*=UTF-8''a%20b.csv"),
            ("é.txt".as_bytes(), "filename=\"_.txt\"; filename*=UTF-8''%C3%A9.txt"),
            (b"a\".html;x=\"", "filename=\"a_.html_x__\"; filename*=UTF-8''a_.html%3Bx%3D_"),
            (b"a\r\nX-Evil: 1", "filename=\"a__X-Evil_ 1\"; filename*=UTF-8''a__X-Evil_%201"),
            (b"..\\..\\x", "filename=\".._.._x\"; filename*=UTF-8''.._.._x"),
            ("gpj.\u{202e}exe".as_bytes(), "filename=\"gpj._exe\"; filename*=UTF-8''gpj._exe"),
            (b"\xff\xfe.bin", "filename=\"__.bin\"; filename*=UTF-8''__.bin"),
            (b"...", "filename=\"download\"; filename*=UTF-8''download"),
            (b"100%", "filename=\"100_\"; filename*=UTF-8''100%25"),
        ];
        for (name, expected) in table {
            let (_, disposition) = present("", name);
            assert_eq!(disposition.strip_prefix("attachment; "), Some(expected));
        }
    }

    /// A second reading of the header, by the grammar of RFC 6266: a type, then parameters that are tokens or quoted.
    fn parse(header: &str) -> Option<(String, Vec<(String, String)>)> {
        let (way, mut rest) = header.split_once(';')?;
        let mut parameters = Vec::new();
        loop {
            let (name, after) = rest.trim_start().split_once('=')?;
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').map(|(value, after)| (value, after.trim_start()))?,
                None => after.find(';').map_or((after, ""), |end| after.split_at(end)),
            };
            parameters.push((name.to_owned(), value.to_owned()));
            match after.strip_prefix(';') {
                Some(more) => rest = more,
                None if after.is_empty() => return Some((way.to_owned(), parameters)),
                None => return None,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn every_name_makes_a_header_that_reads_back(
            name in prop_oneof![
                proptest::collection::vec(1_u8.., 1..255),
                "[\"\\\\;=%'*\r\n\t\u{7f}\u{202e}a-zé. ]{1,60}".prop_map(String::into_bytes),
            ],
        ) {
            let (_, header) = present("text/html", &name);
            prop_assert!(header.bytes().all(|b| (0x20..0x7f).contains(&b)));
            let (way, parameters) = parse(&header).expect("a header");
            prop_assert_eq!(way, "attachment");
            prop_assert_eq!(parameters.iter().map(|p| p.0.as_str()).collect::<Vec<_>>(), ["filename", "filename*"]);
            prop_assert!(parameters[0].1.chars().all(is_simple));
            let encoded = parameters[1].1.strip_prefix("UTF-8''").expect("a charset");
            let decoded = percent_decode_str(encoded).decode_utf8().expect("UTF-8").into_owned();
            prop_assert!(!decoded.is_empty() && !decoded.chars().any(|c| is_misleading(c) || "\\/\"".contains(c)));
            prop_assert_eq!(decoded.chars().count(), parameters[0].1.chars().count());
        }
    }
}
