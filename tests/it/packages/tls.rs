//! Packages from an index over TLS, with a certificate of the operator's own authority.

use std::io::Write as _;

use tempfile::NamedTempFile;

use super::{BASH, Index, JAVASCRIPT, PYTHON, index::ELSEWHERE, installed, printed, refused, server};
use crate::network::vault::{acceptor, issuer};

/// Its host and port.
fn elsewhere() -> &'static str {
    ELSEWHERE.trim_start_matches("https://")
}

#[tokio::test(flavor = "multi_thread")]
async fn uv_npm_and_pip_install_over_tls_what_an_authority_of_the_operator_certifies() {
    let (issuer, roots) = issuer();
    let index = Index::over_tls(acceptor(Some(&issuer))).await;
    let roots = roots.path().to_str().expect("a path");
    let server = server(&index, &[("SANDBOX_PACKAGES__CA_FILE", roots)]).await;
    let names = vec!["needs-tiny==1.0".to_owned(), "tiny==1.0".to_owned()];
    assert_eq!(installed(&server, "a", PYTHON, &["needs_tiny"]).await, (names, false));
    let names = vec!["left@1.0.0".to_owned(), "uses-left@1.0.0".to_owned()];
    assert_eq!(installed(&server, "a", JAVASCRIPT, &["uses-left"]).await, (names, false));
    let code = "import subprocess, sys\n\
                done = subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', 'tiny==1.0'])\n\
                import tiny\nprint(done.returncode, tiny.VALUE)";
    let (stdout, stderr) = printed(&server, "b", PYTHON, code).await;
    assert_eq!(stdout, "Installed tiny==1.0\n0 1.0\n", "{stderr}");
    let code = "pip install tiny==1.0 && tiny-say\nnpm install left";
    let (stdout, stderr) = printed(&server, "c", BASH, code).await;
    assert_eq!(stdout, "Installed tiny==1.0\ntiny says 1.0\nInstalled left@1.0.0\n", "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_packages_at_a_host_that_is_not_named_are_refused_by_its_name() {
    let (issuer, roots) = issuer();
    let index = Index::over_tls(acceptor(Some(&issuer))).await;
    let roots = roots.path().to_str().expect("a path");
    let server = server(&index, &[("SANDBOX_PACKAGES__CA_FILE", roots)]).await;
    let host = elsewhere();
    let told = format!("no policy allows {host}. The operator can add \"{host}\" to `hosts` below [packages]");
    for (language, package) in [(PYTHON, "elsewhere"), (JAVASCRIPT, "npm-elsewhere")] {
        let (code, detail) = refused(&server, "a", language, package).await;
        assert!(code == "packages_refused" && detail.contains(&told), "{package}: {detail}");
    }
    for command in ["pip install elsewhere", "npm install npm-elsewhere"] {
        let (stdout, stderr) = printed(&server, "b", BASH, &format!("{command} && echo installed")).await;
        assert!(!stdout.contains("installed") && stderr.contains(&told), "{command}: {stdout}{stderr}");
    }
    assert_eq!(index.served(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn index_with_a_certificate_that_is_not_trusted_is_refused() {
    let index = Index::over_tls(acceptor(None)).await;
    let server = server(&index, &[]).await;
    for (language, package) in [(PYTHON, "tiny"), (JAVASCRIPT, "left")] {
        let (code, detail) = refused(&server, "a", language, package).await;
        assert!(code == "packages_refused" && detail.to_lowercase().contains("certificate"), "{detail}");
    }
    assert_eq!(index.served(), 0);
    server.stop().await;
}

/// Without the server's own installations: the tools as programs, to an index whose TLS the server opens and to one
/// whose certificate the program itself trusts.
#[tokio::test(flavor = "multi_thread")]
async fn uv_and_npm_of_programs_reach_an_index_that_a_policy_names_and_no_other() {
    let (issuer, roots) = issuer();
    let opened = Index::over_tls(acceptor(Some(&issuer))).await;
    let tunnelled = Index::over_tls(acceptor(Some(&issuer))).await;
    let other = Index::over_tls(acceptor(Some(&issuer))).await;
    let pem = std::fs::read_to_string(roots.path()).expect("the roots");
    let mut config = NamedTempFile::new().expect("a file");
    write!(
        config,
        "[network.opened]\nhosts = [\"{}\"]\nevery_token = true\nmethods = [\"GET\", \"HEAD\"]\n\
         [network.tunnelled]\nhosts = [\"{}\"]\nevery_token = true\n[opened]\nca_file = \"{}\"\n",
        opened.address,
        tunnelled.address,
        roots.path().display()
    )
    .expect("written");
    let config = config.path().to_str().expect("a path");
    let server = server(&opened, &[("--config", config), ("SANDBOX_LIMITS__WALL_MS", "120000")]).await;
    let by_uv = |index: &Index| {
        format!(
            "uv pip install -q --target /data/there --default-index https://{}/simple 'tiny<2' && \
             PYTHONPATH=/data/there python3 -c 'import tiny; tiny.say()'",
            index.address
        )
    };
    let by_npm = |index: &Index| {
        format!(
            "cd /data && echo '{pem}' > roots.pem && export SANDBOX_PACKAGES=direct npm_config_cafile=/data/roots.pem\n\
             npm install --no-audit --no-fund --fetch-retries=0 --registry https://{}/npm left >&2 && \
             node -e 'console.log(require(\"left\"))'",
            index.address
        )
    };
    for (command, want) in [(by_uv(&opened), "tiny says 1.0\n"), (by_npm(&tunnelled), "left\n")] {
        let (stdout, stderr) = printed(&server, "a", BASH, &command).await;
        assert_eq!(stdout, want, "{command}: {stderr}");
    }
    for command in [by_uv(&other), by_npm(&other)] {
        let (stdout, stderr) = printed(&server, "b", BASH, &command).await;
        let told = format!("no policy allows {}", other.address);
        assert!(stdout.is_empty() && stderr.contains(&told), "{command}: {stdout}{stderr}");
    }
    assert_eq!(other.served(), 0);
    server.stop().await;
}
