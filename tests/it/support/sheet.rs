//! The actions of a user on the page, in a real browser.

use std::time::Duration;

use serde_json::{Value, json};
use thirtyfour::{error::WebDriverErrorInner, prelude::*};

use super::{browser::Browser, server::TOKEN, until};

/// How long a program may take on a busy machine.
const RUN_PATIENCE: Duration = Duration::from_mins(4);

/// The page has drawn the element again since it was found, it is not shown yet, or a notice is over it.
fn ends_by_itself(error: &WebDriverError) -> bool {
    matches!(
        error.as_inner(),
        WebDriverErrorInner::StaleElementReference(_)
            | WebDriverErrorInner::ElementNotInteractable(_)
            | WebDriverErrorInner::ElementClickIntercepted(_)
    )
}

/// The page in a browser.
pub struct Sheet {
    pub browser: Browser,
}

impl Sheet {
    /// Opens the page at this address and enters the token.
    pub async fn open(url: &str) -> Self {
        Self::in_browser(Browser::at(url).await).await
    }

    /// Enters the token on the page in this browser.
    pub async fn in_browser(browser: Browser) -> Self {
        browser.state("needs-token").await;
        browser.element("token-input").await.send_keys(TOKEN).await.expect("typed");
        browser.element("token-save").await.click().await.expect("clicked");
        browser.state("ready").await;
        Self { browser }
    }

    /// Reloads the page and waits until it is in this state.
    pub async fn reload(&self, state: &str) {
        self.browser.driver.refresh().await.expect("the page again");
        self.browser.state(state).await;
    }

    /// The id of the open conversation.
    pub async fn conversation(&self) -> String {
        let value = self.browser.script("return document.querySelector('[data-testid=conversation]').value").await;
        value.as_str().expect("a name").to_owned()
    }

    /// Replaces the program in the editor.
    pub async fn write(&self, language: &str, code: &str) {
        let script = "const menu = document.querySelector('[data-testid=language]'); menu.value = arguments[0]; \
                      menu.dispatchEvent(new Event('change', {bubbles: true})); \
                      const view = document.querySelector('[data-testid=editor]').cmView; \
                      view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: arguments[1]}});";
        self.browser.driver.execute(script, vec![json!(language), json!(code)]).await.expect("typed");
    }

    /// The program in the editor.
    pub async fn program(&self) -> Value {
        let script = "return document.querySelector('[data-testid=editor]').cmView.state.doc.toString()";
        self.browser.script(script).await
    }

    /// The language that is chosen.
    pub async fn language(&self) -> Value {
        self.browser.script("return document.querySelector('[data-testid=language]').value").await
    }

    /// Starts the program in the editor.
    pub async fn start(&self) {
        self.browser.script("delete document.querySelector('[data-testid=verdict]').dataset.ended").await;
        self.click("run").await;
    }

    /// Waits for the end; returns the outcome's `ended`.
    pub async fn ended(&self) -> String {
        let mut ended = String::new();
        let over = until::within(RUN_PATIENCE, async || {
            let state = self.browser.script("return document.documentElement.dataset.state").await;
            self.attribute("verdict", "data-ended").await.as_str().unwrap_or_default().clone_into(&mut ended);
            state == "ready" && !["", "starting", "queued", "running"].contains(&ended.as_str())
        });
        let over = over.await.is_ok();
        assert!(over, "no verdict: {}", self.browser.script("return document.body.innerText").await);
        ended
    }

    /// Runs a program to its end; returns the outcome's `ended`.
    pub async fn run(&self, language: &str, code: &str) -> String {
        self.write(language, code).await;
        self.start().await;
        self.ended().await
    }

    /// Clicks an element as soon as it can be clicked.
    pub async fn click(&self, name: &str) {
        let mut refused = None;
        let clicked = until::within(until::PATIENCE, async || match self.browser.element(name).await.click().await {
            Ok(()) => true,
            Err(error) if ends_by_itself(&error) => {
                refused = Some(error);
                false
            }
            Err(error) => panic!("{name}: {error}"),
        });
        let clicked = clicked.await.is_ok();
        assert!(clicked, "{name}: {refused:?}");
    }

    /// Presses keys where the focus is. Not by its element: that of an input of files would take them for names.
    pub async fn press(&self, keys: impl Into<TypingData>) {
        self.browser.driver.action_chain().send_keys(keys).perform().await.expect("typed");
    }

    /// The text of an element, visible or not.
    pub async fn text(&self, name: &str) -> String {
        let script = format!("return document.querySelector('[data-testid={name}]').textContent");
        self.browser.script(&script).await.as_str().expect("a text").to_owned()
    }

    /// Drops a file onto the page.
    pub async fn drop_file(&self, name: &str, content: &str) {
        let script = "const data = new DataTransfer(); data.items.add(new File([arguments[1]], arguments[0])); \
                      const drop = new Event('drop', {bubbles: true, cancelable: true}); \
                      Object.defineProperty(drop, 'dataTransfer', {value: data}); \
                      document.body.dispatchEvent(drop); return null";
        self.browser.driver.execute(script, vec![json!(name), json!(content)]).await.expect("dropped");
    }

    /// Whether a dialog is open.
    pub async fn is_open(&self, dialog: &str) -> bool {
        self.attribute(dialog, "open").await != Value::Null
    }

    /// Waits until a dialog is open, or is closed.
    pub async fn until_open(&self, dialog: &str, wanted: bool) {
        until(dialog, async || self.is_open(dialog).await == wanted).await;
    }

    /// Closes a dialog as the browser does when Escape is pressed again and again: the page cannot prevent it.
    pub async fn force_close(&self, dialog: &str) {
        let script = format!(
            "const dialog = document.querySelector('[data-testid={dialog}]'); \
             dialog.dispatchEvent(new Event('cancel')); dialog.close(); return null"
        );
        self.browser.script(&script).await;
    }

    pub async fn attribute(&self, name: &str, attribute: &str) -> Value {
        let script = format!("return document.querySelector('[data-testid={name}]').getAttribute('{attribute}')");
        self.browser.script(&script).await
    }

    /// Waits until an element's text matches.
    pub async fn says(&self, name: &str, wanted: impl Fn(&str) -> bool) {
        let mut text = String::new();
        let matched = until::within(until::PATIENCE, async || {
            text = self.text(name).await;
            wanted(&text)
        });
        let matched = matched.await.is_ok();
        assert!(matched, "{name}: {text}");
    }

    /// The state or `ended` of each listed run, newest first.
    pub async fn history(&self) -> Vec<String> {
        let script = "return [...document.querySelectorAll('[data-testid=history-run]')].map(e => e.dataset.ended)";
        serde_json::from_value(self.browser.script(script).await).expect("a list")
    }

    /// Selects a run of the list by its index.
    pub async fn choose(&self, place: usize) {
        let script = format!("document.querySelectorAll('[data-testid=history-run]')[{place}].click()");
        self.browser.script(&script).await;
    }
}
