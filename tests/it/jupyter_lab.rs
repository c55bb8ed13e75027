//! `JupyterLab` with its kernels on a server process, in a real browser: a plot, an interrupt, a restart.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    browser::Browser,
    free_port,
    process::Process,
    server::TOKEN,
    until::{PATIENCE, until, within},
};

/// A `JupyterLab` on this machine, without a token of its own.
struct Lab {
    process: Child,
    url: String,
    folder: TempDir,
}

impl Lab {
    async fn start(server: &Process, notebook: &Value) -> Self {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-tools/jupyter/bin");
        let lab = tools.join("jupyter-lab");
        assert!(lab.exists(), "{} is missing: run ./test.sh, which prepares it", lab.display());
        let folder = tempfile::Builder::new().prefix("sandbox-lab-").tempdir().expect("a folder");
        let notebooks: PathBuf = folder.path().join("notebooks");
        std::fs::create_dir(&notebooks).expect("a folder");
        std::fs::write(notebooks.join("a.ipynb"), notebook.to_string()).expect("a notebook");
        let port = free_port();
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let process = Command::new(tools.join("python"))
            .arg(lab)
            .args(["--no-browser", "--allow-root", "--expose-app-in-browser", "--IdentityProvider.token="])
            .arg(format!("--port={port}"))
            .arg(format!("--ServerApp.root_dir={}", notebooks.display()))
            .arg(format!("--gateway-url={}", server.url("/jupyter")))
            .arg(format!("--GatewayClient.auth_token={TOKEN}"))
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        let url = format!("http://127.0.0.1:{port}/lab/tree/a.ipynb");
        let lab = Self { process, url, folder };
        until("the lab listens", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        lab
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn notebook(cells: &[&str]) -> Value {
    let cell = |code: &&str| {
        let source = json!(code);
        json!({"cell_type": "code", "metadata": {}, "execution_count": null, "outputs": [], "source": source})
    };
    let kernel = json!({"display_name": "Python 3", "language": "python", "name": "python3"});
    json!({"cells": cells.iter().map(cell).collect::<Vec<_>>(), "metadata": {"kernelspec": kernel}, "nbformat": 4,
        "nbformat_minor": 4})
}

/// Gives the application a command.
async fn command(browser: &Browser, name: &str) {
    // Some end only with a dialog.
    browser.script(&format!("window.jupyterapp.commands.execute('{name}'); return null")).await;
}

/// Waits until something on the page holds.
async fn page(browser: &Browser, what: &str, condition: &str) {
    let script = format!("try {{ return Boolean({condition}) }} catch (error) {{ return false }}");
    if within(PATIENCE, async || browser.script(&script).await == true).await.is_err() {
        let state = browser.script(&format!("try {{ return {STATE} }} catch (error) {{ return String(error) }}")).await;
        panic!("it never came to be: {what}\n{state:#}");
    }
}

/// What the cells show.
const SHOWN: &str = "[...document.querySelectorAll('.jp-OutputArea-output')].map(one => one.textContent).join('|')";
/// The open notebook. It is not always the current widget, which is the one that has the focus of the keyboard.
macro_rules! notebook {
    ($of_it:literal) => {
        concat!("[...window.jupyterapp.shell.widgets('main')].find(one => one.context?.path === 'a.ipynb')", $of_it)
    };
}
const KERNEL: &str = notebook!(".sessionContext.session.kernel");
/// What a failure shows.
const STATE: &str = "({widgets: [...window.jupyterapp.shell.widgets('main')].map(one => [one.id, one.context?.path]), \
    current: window.jupyterapp.shell.currentWidget?.id, focus: document.hasFocus(), \
    dialogs: [...document.querySelectorAll('.jp-Dialog')].map(one => one.textContent), \
    kernels: [...window.jupyterapp.shell.widgets('main')].map(one => one.sessionContext?.session?.kernel) \
    .map(kernel => [kernel?.status, kernel?.connectionStatus])})";

#[tokio::test(flavor = "multi_thread")]
async fn a_notebook_plots_is_interrupted_and_restarted() {
    let server = Process::start(&[]).await;
    let plot = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 3, 2])";
    // An interrupt between two cells would end the sleep before it begins.
    let sleep = "import asyncio\nprint('it ' + 'sleeps', flush=True)\nawait asyncio.sleep(600)";
    let lab = Lab::start(&server, &notebook(&["a = 41", plot, sleep, "a + 1"])).await;
    let browser = Browser::open().await;
    browser.focus().await;
    browser.driver.goto(&lab.url).await.expect("a page");
    // Its state is unknown to the page until the first message that JupyterLab tracks.
    page(&browser, "the kernel is connected", &format!("{KERNEL}.connectionStatus === 'connected'")).await;

    browser.script(concat!("window.jupyterapp.shell.activateById(", notebook!(".id"), "); return null")).await;
    command(&browser, "notebook:run-all-cells").await;
    let image = "document.querySelector('.jp-OutputArea-output img').src.startsWith('data:image/png')";
    page(&browser, "the plot is shown", image).await;
    page(&browser, "the kernel sleeps", &format!("{SHOWN}.includes('it sleeps')")).await;
    // A kernel drops an interrupt that comes when it is busy and the cell has not begun; a person presses again.
    let interrupted = format!("/KeyboardInterrupt|CancelledError/.test({SHOWN})");
    let press = "window.jupyterapp.commands.execute('notebook:interrupt-kernel')";
    let again = format!("(Date.now() - (window.pressed ?? 0) > 3000 && (window.pressed = Date.now(), {press}), false)");
    let pressed = format!("{interrupted} || {again}");
    page(&browser, "it is interrupted", &pressed).await;
    page(&browser, "the kernel is idle", &format!("{KERNEL}.status === 'idle'")).await;
    let last = notebook!(".content.activeCellIndex = 3");
    browser.script(&format!("{last}; return null")).await;
    command(&browser, "notebook:run-cell").await;
    page(&browser, "the variables are there", &format!("{SHOWN}.includes('42')")).await;

    command(&browser, "notebook:restart-kernel").await;
    page(&browser, "the dialog", "(document.querySelector('.jp-Dialog .jp-mod-accept').click(), true)").await;
    page(
        &browser,
        "the kernel is new",
        &format!("!document.querySelector('.jp-Dialog') && {KERNEL}.status === 'idle'"),
    )
    .await;
    browser.script(&format!("{last}; return null")).await;
    command(&browser, "notebook:run-cell").await;
    page(&browser, "the variables are gone", &format!("{SHOWN}.includes('NameError')")).await;
    browser.close().await;
    server.stop().await;
}
