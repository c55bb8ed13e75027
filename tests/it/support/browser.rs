//! A real Chromium, driven over `WebDriver`. A test fails where it is not installed.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::{error::WebDriverErrorInner, extensions::cdp::ChromeDevTools, prelude::*};

use super::until;

const PREPARE: &str =
    "the page's tests need Debian's chromium-headless-shell and chromium-driver: run ./test.sh, which installs them";

pub struct Browser {
    pub driver: WebDriver,
    pub downloads: PathBuf,
    _chromedriver: Chromedriver,
    _folder: TempDir,
}

/// Chromium now and then ends by itself at its start, seen as a session that is not made, or is gone with the first
/// page. A page that ends it does so each time. `chromedriver` takes a free port of IPv4 and ends where another process
/// has that port of IPv6.
const STARTS: usize = 3;

fn has_ended(error: &WebDriverError) -> bool {
    matches!(error.as_inner(), WebDriverErrorInner::SessionNotCreated(_) | WebDriverErrorInner::InvalidSessionId(_))
}

impl Browser {
    /// A browser with an empty page.
    pub async fn open() -> Self {
        Self::at("about:blank").await
    }

    /// A browser with this page.
    pub async fn at(url: &str) -> Self {
        let without_windows = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/chromium.sh");
        Self::of(without_windows, url).await
    }

    /// As [`Self::at`], with what the other one lacks: the viewer of PDF. It takes four times as long to start.
    pub async fn whole_at(url: &str) -> Self {
        Self::of("/usr/bin/chromium", url).await
    }

    async fn of(binary: &str, url: &str) -> Self {
        let mut start = 1;
        loop {
            match Self::start(binary, url).await {
                Ok(browser) => return browser,
                Err(error) if start < STARTS && has_ended(&error) => eprintln!("start {start} of chromium: {error}"),
                Err(error) => panic!("chromium: {error}; {PREPARE}"),
            }
            start += 1;
        }
    }

    async fn start(binary: &str, url: &str) -> WebDriverResult<Self> {
        let folder = tempfile::Builder::new().prefix("sandbox-browser-").tempdir().expect("a folder");
        let downloads = folder.path().join("downloads");
        std::fs::create_dir(&downloads).expect("a folder");
        let chromedriver = (0..STARTS)
            .find_map(|_| Chromedriver::start())
            .unwrap_or_else(|| panic!("chromedriver ended at each of {STARTS} starts; {PREPARE}"));
        let profile = folder.path().join("profile");
        let mut wanted = DesiredCapabilities::chrome();
        wanted.set_binary(binary).expect("a capability");
        for flag in [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-quic",
            "--no-first-run",
            // What moves is drawn anew sixty times a second, by the processors of the tests.
            "--force-prefers-reduced-motion",
            "--window-size=1280,900",
            &format!("--user-data-dir={}", profile.display()),
        ] {
            wanted.add_arg(flag).expect("a capability");
        }
        wanted.set_base_capability("goog:loggingPrefs", json!({"browser": "ALL"})).expect("a capability");
        super::http::provide_tls();
        let driver = WebDriver::new(&chromedriver.url, wanted).await?;
        let saved = json!({"behavior": "allow", "downloadPath": downloads});
        let tools = ChromeDevTools::new(driver.handle.clone());
        tools.execute_cdp_with_params("Browser.setDownloadBehavior", saved).await?;
        driver.goto(url).await?;
        Ok(Self { driver, downloads, _chromedriver: chromedriver, _folder: folder })
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
            .wait(until::PATIENCE, Duration::from_millis(50))
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

    pub async fn close(self) {
        self.driver.clone().quit().await.expect("the browser ends");
    }
}

/// `chromedriver` on a port that it chose itself; ended when dropped.
struct Chromedriver {
    url: String,
    process: Child,
    /// Open, so that what it says later does not end it.
    _output: BufReader<ChildStdout>,
}

impl Chromedriver {
    /// None where it ends at its start: what it says then is in the test's output.
    fn start() -> Option<Self> {
        let mut process = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver: {error}; {PREPARE}"));
        let mut output = BufReader::new(process.stdout.take().expect("its output"));
        let mut told = String::new();
        // "ChromeDriver was started successfully on port 41234."
        let port = loop {
            told.clear();
            if output.read_line(&mut told).expect("its output") == 0 {
                drop(process.wait());
                return None;
            }
            eprint!("{told}");
            if let Some((_, port)) = told.trim_end().trim_end_matches('.').split_once("successfully on port ") {
                break port.to_owned();
            }
        };
        Some(Self { url: format!("http://127.0.0.1:{port}"), process, _output: output })
    }
}

impl Drop for Chromedriver {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
