//! Media types, told from a name's ending alone. They say what a file claims to be; what a browser may do with it is
//! decided where it is served.

/// What nothing better is known of.
pub const OCTET_STREAM: &str = "application/octet-stream";

/// Endings that mean something else here than in the general table, which was made for web servers.
const OURS: [(&str, &str); 8] = [
    ("ts", "text/typescript"),
    ("tsx", "text/typescript"),
    ("mts", "text/typescript"),
    ("cts", "text/typescript"),
    ("py", "text/x-python"),
    ("ipynb", "application/x-ipynb+json"),
    ("jsonl", "application/jsonl"),
    ("feather", "application/vnd.apache.arrow.file"),
];

/// The media type that a file's name stands for, without parameters; [`OCTET_STREAM`] when it stands for none.
pub fn media_type(name: &[u8]) -> &'static str {
    let ending = || {
        let dot = name.iter().rposition(|&b| b == b'.').filter(|&at| at > 0)?;
        Some(std::str::from_utf8(&name[dot + 1..]).ok()?.to_ascii_lowercase())
    };
    let Some(ending) = ending() else { return OCTET_STREAM };
    let ours = OURS.iter().find(|(known, _)| *known == ending).map(|(_, media)| *media);
    ours.or_else(|| mime_guess::from_ext(&ending).first_raw()).unwrap_or(OCTET_STREAM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_tell() {
        let table: [(&[u8], &str); 14] = [
            (b"a.csv", "text/csv"),
            (b"A.CSV", "text/csv"),
            (b"a.b.png", "image/png"),
            (b"plot.svg", "image/svg+xml"),
            (b"x.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
            (b"main.ts", "text/typescript"),
            (b"main.py", "text/x-python"),
            (b"a", OCTET_STREAM),
            (b".png", OCTET_STREAM),
            (b"a.", OCTET_STREAM),
            (b"", OCTET_STREAM),
            (b"a.\xff", OCTET_STREAM),
            (b"a.png\n", OCTET_STREAM),
            (b"a.nosuchending", OCTET_STREAM),
        ];
        for (name, media) in table {
            assert_eq!(media_type(name), media, "{}", String::from_utf8_lossy(name));
        }
    }
}
