//! A real Chromium, driven over `WebDriver`. A test fails where it is not installed.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::{extensions::cdp::ChromeDevTools, prelude::*};

use super::until::{self, until};

const PREPARE: &str = "the page's tests need Debian's chromium and chromium-driver: run ./test.sh, which installs them";

pub struct Browser {
    pub driver: WebDriver,
    pub downloads: PathBuf,
    process: Child,
    _folder: TempDir,
}

impl Browser {
    pub async fn open() -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-browser-").tempdir().expect("a folder");
        let downloads = folder.path().join("downloads");
        std::fs::create_dir(&downloads).expect("a folder");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let process = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver: {error}; {PREPARE}"));
        until("chromedriver listens", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        let profile = folder.path().join("profile");
        let mut wanted = DesiredCapabilities::chrome();
        wanted.set_binary("/usr/bin/chromium").expect("a capability");
        for flag in [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-quic",
            "--no-first-run",
            "--window-size=1280,900",
            &format!("--user-data-dir={}", profile.display()),
        ] {
            wanted.add_arg(flag).expect("a capability");
        }
        let preferences = json!({"download.default_directory": downloads, "download.prompt_for_download": false});
        wanted.add_experimental_option("prefs", preferences).expect("a capability");
        wanted.set_base_capability("goog:loggingPrefs", json!({"browser": "ALL"})).expect("a capability");
        super::http::provide_tls();
        let driver = WebDriver::new(format!("http://127.0.0.1:{port}"), wanted)
            .await
            .unwrap_or_else(|error| panic!("chromium: {error}; {PREPARE}"));
        Self { driver, downloads, process, _folder: folder }
    }

    /// Makes the page believe that it has the focus of the keyboard. A headless browser sometimes has none, and pages
    /// that ask for it then act on nothing.
    pub async fn focus(&self) {
        let tools = ChromeDevTools::new(self.driver.handle.clone());
        let asked = tools.execute_cdp_with_params("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        asked.await.expect("Chromium's protocol");
    }

    /// Waits for the element with this `data-testid`.
    pub async fn element(&self, name: &str) -> WebElement {
        self.driver
            .query(By::Css(format!("[data-testid=\"{name}\"]")))
            .wait(Duration::from_secs(30), Duration::from_millis(50))
            .first()
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub async fn script(&self, script: &str) -> Value {
        let answer = self.driver.execute(script, vec![]).await;
        answer.unwrap_or_else(|error| panic!("{script}: {error}")).json().clone()
    }

    /// Waits until the page is in this state.
    pub async fn state(&self, wanted: &str) {
        let mut seen = Value::Null;
        let reached = until::within(until::PATIENCE, async || {
            seen = self.script("return document.documentElement.dataset.state").await;
            seen == wanted
        });
        if reached.await.is_err() {
            let banner = self.script("return document.body.innerText").await;
            panic!("the page is {seen} and not {wanted}: {banner}");
        }
    }

    pub async fn screenshot(&self, path: &Path) {
        self.driver.screenshot(path).await.expect("a screenshot");
    }

    pub async fn close(mut self) {
        self.driver.clone().quit().await.expect("the browser ends");
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.process.kill());
    }
}
