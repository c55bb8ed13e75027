//! What a person does with the page, in a browser that shows it.

use std::time::Duration;

use serde_json::{Value, json};

use super::{browser::Browser, server::TOKEN, until};

/// How long a program may take on a machine that is busy with something else.
const RUN_PATIENCE: Duration = Duration::from_mins(4);

/// The page, shown by a browser.
pub struct Sheet {
    pub browser: Browser,
}

impl Sheet {
    /// The page at this address, with its token given.
    pub async fn open(url: &str) -> Self {
        let browser = Browser::open().await;
        browser.driver.goto(url).await.expect("the page");
        browser.state("needs-token").await;
        browser.element("token-input").await.send_keys(TOKEN).await.expect("typed");
        browser.element("token-save").await.click().await.expect("clicked");
        browser.state("ready").await;
        Self { browser }
    }

    /// Loads the page anew; resolves when it is in this state.
    pub async fn reload(&self, state: &str) {
        self.browser.driver.refresh().await.expect("the page again");
        self.browser.state(state).await;
    }

    /// The conversation that is open.
    pub async fn conversation(&self) -> String {
        let value = self.browser.script("return document.querySelector('[data-testid=conversation]').value").await;
        value.as_str().expect("a name").to_owned()
    }

    /// Puts a program in the place of what is in the editor.
    pub async fn write(&self, language: &str, code: &str) {
        let script = "const menu = document.querySelector('[data-testid=language]'); menu.value = arguments[0]; \
                      menu.dispatchEvent(new Event('change', {bubbles: true})); \
                      const view = document.querySelector('[data-testid=editor]').cmView; \
                      view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: arguments[1]}});";
        self.browser.driver.execute(script, vec![json!(language), json!(code)]).await.expect("typed");
    }

    /// Begins to run what is in the editor.
    pub async fn start(&self) {
        self.browser.script("delete document.querySelector('[data-testid=verdict]').dataset.ended").await;
        self.click("run").await;
    }

    /// Waits for the end; the contract's word for it.
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

    /// Runs a program to its end; the contract's word for it.
    pub async fn run(&self, language: &str, code: &str) -> String {
        self.write(language, code).await;
        self.start().await;
        self.ended().await
    }

    pub async fn click(&self, name: &str) {
        self.browser.element(name).await.click().await.expect("clicked");
    }

    /// Everything an element says, seen or not.
    pub async fn text(&self, name: &str) -> String {
        let script = format!("return document.querySelector('[data-testid={name}]').textContent");
        self.browser.script(&script).await.as_str().expect("a text").to_owned()
    }

    pub async fn attribute(&self, name: &str, attribute: &str) -> Value {
        let script = format!("return document.querySelector('[data-testid={name}]').getAttribute('{attribute}')");
        self.browser.script(&script).await
    }

    /// Waits until an element's text is to the test's liking.
    pub async fn says(&self, name: &str, wanted: impl Fn(&str) -> bool) {
        let mut said = String::new();
        let liked = until::within(until::PATIENCE, async || {
            said = self.text(name).await;
            wanted(&said)
        });
        let liked = liked.await.is_ok();
        assert!(liked, "{name} says: {said}");
    }

    /// How each run of the list ended, newest first.
    pub async fn history(&self) -> Vec<String> {
        let script = "return [...document.querySelectorAll('[data-testid=history-run]')].map(e => e.dataset.ended)";
        serde_json::from_value(self.browser.script(script).await).expect("a list")
    }

    /// Shows a run of the list, by its place.
    pub async fn choose(&self, place: usize) {
        let script = format!("document.querySelectorAll('[data-testid=history-run]')[{place}].click()");
        self.browser.script(&script).await;
    }
}
