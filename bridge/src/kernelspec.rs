//! Finds a kernel by its name, as Jupyter does: `kernels/<name>/kernel.json` in the folders of `JUPYTER_PATH`, then of
//! the environments on `PATH`, then of the system. Owns what is read from that file.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// The first of each on `PATH` says where an environment is, whose kernels are in its `share/jupyter`.
const PROGRAMS: [&str; 3] = ["jupyter", "python3", "python"];

/// What a conversation has installed is on `PATH` as well, and is no kernel of the image.
const DATA: &str = "/data";

/// Where images keep kernels outside of environments.
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
        let [jupyter_path, path] = ["JUPYTER_PATH", "PATH"].map(|name| std::env::var_os(name).unwrap_or_default());
        Self::find_in(name, &folders(&jupyter_path, &path))
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

fn folders(jupyter_path: &OsStr, path: &OsStr) -> Vec<PathBuf> {
    let given = std::env::split_paths(jupyter_path).filter(|folder| folder.is_absolute());
    let of_environments = PROGRAMS.iter().flat_map(|program| environments(program, path));
    let of_environments = of_environments.map(|prefix| prefix.join("share/jupyter"));
    // The order of those of the system is their own, also where a program is in `/usr/bin`.
    let of_environments = of_environments.filter(|folder| !FOLDERS.iter().any(|other| folder == Path::new(other)));
    given.chain(of_environments).chain(FOLDERS.iter().map(PathBuf::from)).collect()
}

/// The prefix of a program on `PATH`, and of the program that it is a link to.
fn environments(program: &str, path: &OsStr) -> Vec<PathBuf> {
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute() && !folder.starts_with(DATA));
    let Some(found) = folders.map(|folder| folder.join(program)).find(|program| program.is_file()) else {
        return Vec::new();
    };
    let target = std::fs::read_link(&found).ok().filter(|target| target.is_absolute());
    let programs = [Some(found), target].into_iter().flatten();
    programs.filter_map(|program| Some(program.parent()?.parent()?.to_owned())).collect()
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
        let all = folders(OsStr::new("/a:relative::/b"), OsStr::new(""));
        assert_eq!(all[..3], [PathBuf::from("/a"), "/b".into(), FOLDERS[0].into()]);
    }

    #[test]
    fn environments_on_path_come_between_given_folders_and_those_of_the_system() {
        let root = tempfile::tempdir().expect("a folder");
        let [conda, venv, links] = ["conda/bin", "venv/bin", "local/bin"].map(|name| root.path().join(name));
        for folder in [&conda, &venv, &links] {
            std::fs::create_dir_all(folder).expect("made");
        }
        std::fs::write(conda.join("jupyter"), "").expect("written");
        std::fs::write(venv.join("python3"), "").expect("written");
        std::os::unix::fs::symlink(conda.join("jupyter"), links.join("jupyter")).expect("linked");
        let path = std::env::join_paths([&links, &venv, &PathBuf::from("relative")]).expect("a path");
        let expected = ["local", "conda", "venv"].map(|name| root.path().join(name).join("share/jupyter"));
        let all = folders(OsStr::new("/given"), &path);
        assert_eq!(all[0], PathBuf::from("/given"));
        assert_eq!(all[1..4], expected);
        assert_eq!(all[4..], FOLDERS.map(PathBuf::from));
        let usual = folders(OsStr::new(""), OsStr::new("/usr/local/bin:/usr/bin:/bin"));
        for folder in FOLDERS {
            assert_eq!(usual.iter().filter(|other| other.as_path() == Path::new(folder)).count(), 1, "{usual:?}");
        }
    }
}
