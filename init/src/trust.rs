//! The certificates that programs trust, where the server opens TLS for them: files that variables of the program name.
//! They are in memory, outside of the conversation's files, and need no protection from the program.

use std::{fs, io, path::Path};

const FOLDER: &str = "/tmp/.sandbox-tls";
/// What Debian's packages and most others trust.
const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Writes the server's certificate alone, and after those that the image trusts.
///
/// # Errors
/// There is no room in `/tmp`.
pub fn write(authority: &str) -> io::Result<()> {
    let explained = |error| io::Error::other(format!("the certificates of the sandbox: {error}"));
    write_to(Path::new(FOLDER), Path::new(SYSTEM), authority).map_err(explained)
}

fn write_to(folder: &Path, system: &Path, authority: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("authority.pem"), authority)?;
    // An image without any trusts the server alone.
    let mut bundle = fs::read(system).unwrap_or_default();
    if !bundle.is_empty() {
        bundle.push(b'\n');
    }
    bundle.extend_from_slice(authority.as_bytes());
    fs::write(folder.join("bundle.pem"), bundle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_has_what_the_image_trusts_and_the_server() {
        let held = tempfile::tempdir().expect("a folder");
        let folder = held.path();
        let (system, absent) = (folder.join("system"), folder.join("absent"));
        fs::write(&system, "SYSTEM").expect("written");
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a file");
        write_to(folder, &absent, "OURS\n").expect("written");
        assert_eq!((read("authority.pem"), read("bundle.pem")), ("OURS\n".to_owned(), "OURS\n".to_owned()));
        write_to(folder, &system, "OURS\n").expect("written again");
        assert_eq!((read("authority.pem"), read("bundle.pem")), ("OURS\n".to_owned(), "SYSTEM\nOURS\n".to_owned()));
    }
}
