//! Runner images that a test builds for itself, with the docker command.

use std::{path::Path, process::Command};

use super::engines::base_image;

/// Runs the docker command; what it printed.
pub fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("the docker command: run ./test.sh");
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The image of a language of its own, so that no other server on this engine takes it for a language that it offers.
/// Removed also when the test fails.
pub struct Image {
    pub name: String,
    pub language: String,
}

impl Image {
    /// A name and a language that no other test has; nothing is built.
    pub fn new(kind: &str) -> Self {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        Self { name: format!("sandbox-it-{unique}"), language: format!("{kind}-{}", &unique[..8]) }
    }

    /// Builds it from a folder of `tests/fixtures`; the server sees it from now on.
    pub fn build(&self, fixture: &str) {
        let context = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
        let (base, language) = (format!("BASE={}", base_image()), format!("sandbox.language={}", self.language));
        let mut arguments = vec!["build", "--quiet", "--build-arg", &base];
        for proxy in ["http_proxy", "https_proxy", "no_proxy"] {
            arguments.extend(["--build-arg", proxy]);
        }
        let context = context.display().to_string();
        arguments.extend(["--label", "sandbox.runner=true", "--label", &language, "--tag", &self.name, &context]);
        docker(&arguments);
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // The layers stay: the next test builds from them.
        drop(Command::new("docker").args(["rmi", "-f", "--no-prune", &self.name]).output());
    }
}
