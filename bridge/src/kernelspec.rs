//! Finds a kernel by its name, as Jupyter does: `kernels/<name>/kernel.json` in the folders of `JUPYTER_PATH`, then in
//! those of the image. Owns what is read from that file.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// Where images keep kernels, after `JUPYTER_PATH`.
const FOLDERS: [&str; 3] = ["/usr/local/share/jupyter", "/usr/share/jupyter", "/opt/venv/share/jupyter"];

/// How a kernel is interrupted.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum InterruptMode {
    /// By SIGINT to its process group.
    #[default]
    Signal,
    /// By a message on the control channel.
    Message,
}

/// How this program reaches a kernel.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Sockets in a folder.
    #[default]
    Ipc,
    /// Ports on 127.0.0.1.
    Tcp,
}

/// `kernel.json`, as far as it is used here.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Kernelspec {
    /// The command; `{connection_file}` and `{resource_dir}` stand for paths.
    pub argv: Vec<String>,
    /// Added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub interrupt_mode: InterruptMode,
    #[serde(default)]
    metadata: Metadata,
    #[serde(skip)]
    folder: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
struct Metadata {
    #[serde(default)]
    sandbox: OurMetadata,
}

/// `"metadata": {"sandbox": {"transport": "tcp"}}` for a kernel without `ipc`, `"idleDelayMs": 250` for one that
/// sends output after the status that ends its cell.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct OurMetadata {
    #[serde(default)]
    transport: Transport,
    #[serde(default)]
    idle_delay_ms: u8,
}

impl Kernelspec {
    /// The kernelspec called `name`.
    ///
    /// # Errors
    /// In words: there is none, or it cannot be read.
    pub fn find(name: &str) -> Result<Self, String> {
        let path = std::env::var_os("JUPYTER_PATH").unwrap_or_default();
        Self::find_in(name, &folders(&path))
    }

    fn find_in(name: &str, folders: &[PathBuf]) -> Result<Self, String> {
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !is_name || name.starts_with('.') || name.is_empty() {
            return Err(format!("{name:?} is not the name of a kernel"));
        }
        let folder = folders.iter().map(|folder| folder.join("kernels").join(name));
        let Some(folder) = folder.into_iter().find(|folder| folder.join("kernel.json").is_file()) else {
            return Err(format!("there is no kernel {name:?} in this image"));
        };
        let bad = |error: &dyn std::fmt::Display| format!("the kernelspec {name:?} cannot be read: {error}");
        let text = std::fs::read(folder.join("kernel.json")).map_err(|error| bad(&error))?;
        let spec: Self = serde_json::from_slice(&text).map_err(|error| bad(&error))?;
        if spec.argv.is_empty() { Err(bad(&"argv is empty")) } else { Ok(Self { folder, ..spec }) }
    }

    /// The command with its paths filled in.
    pub fn command(&self, connection_file: &Path) -> Vec<String> {
        let (file, folder) = (connection_file.to_string_lossy(), self.folder.to_string_lossy());
        let filled = |word: &String| word.replace("{connection_file}", &file).replace("{resource_dir}", &folder);
        self.argv.iter().map(filled).collect()
    }

    pub fn transport(&self) -> Transport {
        self.metadata.sandbox.transport
    }

    /// How long an idle status waits for output that belongs before it.
    pub fn idle_delay(&self) -> Duration {
        Duration::from_millis(self.metadata.sandbox.idle_delay_ms.into())
    }
}

fn folders(jupyter_path: &OsString) -> Vec<PathBuf> {
    let given = std::env::split_paths(jupyter_path).filter(|folder| folder.is_absolute());
    given.chain(FOLDERS.iter().map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(json: &str) -> (tempfile::TempDir, Result<Kernelspec, String>) {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("kernels/x")).expect("made");
        std::fs::write(folder.path().join("kernels/x/kernel.json"), json).expect("written");
        let found = Kernelspec::find_in("x", &[folder.path().to_owned()]);
        (folder, found)
    }

    #[test]
    fn kernelspec_is_read_and_its_command_is_filled() {
        let json = r#"{"argv": ["k", "{resource_dir}/a", "--f={connection_file}"], "display_name": "K", "language": "k",
            "interrupt_mode": "message", "env": {"A": "b"},
            "metadata": {"debugger": true, "sandbox": {"transport": "tcp", "idleDelayMs": 5}}}"#;
        let (folder, found) = written(json);
        let spec = found.expect("a kernelspec");
        assert_eq!((spec.interrupt_mode, spec.transport()), (InterruptMode::Message, Transport::Tcp));
        assert_eq!(spec.idle_delay(), Duration::from_millis(5));
        let resources = format!("{}/kernels/x/a", folder.path().display());
        assert_eq!(spec.command(Path::new("/tmp/c")), ["k", &resources, "--f=/tmp/c"]);
    }

    #[test]
    fn everything_but_the_command_is_optional() {
        let spec = written(r#"{"argv": ["k"]}"#).1.expect("a kernelspec");
        assert_eq!((spec.interrupt_mode, spec.transport()), (InterruptMode::Signal, Transport::Ipc));
        for wrong in ["", "[]", "{}", r#"{"argv": []}"#, r#"{"argv": "k"}"#, r#"{"argv": ["k"], "interrupt_mode": 1}"#]
        {
            assert!(written(wrong).1.is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_stay_inside_of_the_folders() {
        for name in ["", ".", "..", "../x", "a/b", "/x", "é"] {
            assert!(Kernelspec::find_in(name, &[]).is_err_and(|message| message.contains("not the name")), "{name}");
        }
        assert!(Kernelspec::find_in("none", &[]).is_err_and(|message| message.contains("no kernel")));
    }

    #[test]
    fn given_folders_come_before_those_of_the_image() {
        let all = folders(&OsString::from("/a:relative::/b"));
        assert_eq!(all[..3], [PathBuf::from("/a"), "/b".into(), FOLDERS[0].into()]);
    }
}
