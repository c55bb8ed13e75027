//! Paths that try to lead elsewhere, sent as they are.

use super::{CANARY, FileServer};

/// Ways to say "up" or "elsewhere", each with a signature that is good for the file `a.txt` and none that is good for
/// it.
fn traversals() -> Vec<Vec<u8>> {
    let ups: [&[u8]; 24] = [
        b"..",
        b"%2e%2e",
        b"%2E%2e",
        b".%2e",
        b"%2e.",
        b"%252e%252e",
        b"%25252e%25252e",
        b"%c0%ae%c0%ae",
        b"%e0%80%ae",
        b"%uff0e%uff0e",
        b"..;",
        b"..%00",
        b"..%0d%0a",
        b"..%09",
        b"..%20",
        b"..%ff",
        b"....",
        b"%2e%2e%2f",
        b"..%2f",
        b"..%5c",
        b"..\\",
        b"..%255c",
        b"..%c0%af",
        b"\xc0\xae\xc0\xae",
    ];
    let ends: [&[u8]; 4] = [b"/secret.txt", b"/other/files/secret.txt", b"%2fsecret.txt", b"\\secret.txt"];
    let mut targets = Vec::new();
    for up in ups {
        for end in ends {
            for depth in [1, 3] {
                let middle = vec![up; depth].join(&b'/');
                targets.push([b"/files/c/", middle.as_slice(), end].concat());
            }
            targets.push([b"/files/", up, b"/other/files", end].concat());
        }
    }
    let more: [&[u8]; 26] = [
        b"/files/c/./a.txt",
        b"/files/c//a.txt",
        b"/files//c/a.txt",
        b"//files/c/a.txt",
        b"/files/c/a.txt/",
        b"/files/c/a.txt/.",
        b"/files/c/a.txt/..",
        b"/files/c/x/../a.txt",
        b"/files/c%2fa.txt",
        b"/files/c/%2fetc/passwd",
        b"/files/c//etc/passwd",
        b"/files/c/a.txt%00.png",
        b"/files/c/a.txt%",
        b"/files/c/a.txt%2",
        b"/files/c/a.txt%zz",
        b"/files/c/%",
        b"/files/c/",
        b"/files/%2e%2e/c/a.txt",
        b"/files/.%2fc/a.txt",
        b"/files/c/~root/x",
        b"/files/c/..a.txt",
        b"/files/c/a.txt;x=1",
        b"/files/c/file:%2f%2f%2fetc%2fpasswd",
        b"/files/c/C:%5cx",
        b"/files/c/%00",
        b"/files/c%00/a.txt",
    ];
    targets.extend(more.iter().map(|target| target.to_vec()));
    targets
}

#[tokio::test]
async fn path_traversal_is_refused() {
    let server = FileServer::new().await;
    let good = server.url("a.txt");
    let query = good.split_once('?').expect("a query").1;
    let targets = traversals();
    assert!(targets.len() >= 150, "{}", targets.len());
    for target in targets {
        let signed = [&target, b"?".as_slice(), query.as_bytes()].concat();
        for target in [[b"http://x".as_slice(), &signed].concat(), signed, target] {
            let answer = server.send("GET", &target, "").await;
            let shown = String::from_utf8_lossy(&target).into_owned();
            assert!(matches!(answer.status, 400 | 403 | 404), "{} for {shown}", answer.status);
            assert!(answer.body.windows(CANARY.len()).all(|w| w != CANARY.as_bytes()), "{shown}");
        }
    }
}
