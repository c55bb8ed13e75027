//! Skills on the page, in a real browser.

use std::{fs, path::Path};

use thirtyfour::prelude::*;

use super::{Scene, skill_md, write, zipped};
use crate::{
    page_access::findings,
    support::{FakeServer, browser::Browser, sheet::Sheet, until},
};

async fn rows(browser: &Browser) -> Vec<String> {
    let script = "return [...document.querySelectorAll('[data-testid=skill-row]')].map((row) => row.innerText)";
    serde_json::from_value(browser.script(script).await).expect("texts")
}

/// A picture to look at, and what axe says.
async fn look(browser: &Browser, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
    fs::create_dir_all(&folder).expect("a folder");
    browser.screenshot(&folder.join(format!("{name}.png"))).await;
    let found = findings(browser, name).await;
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_are_read_uploaded_replaced_and_deleted_on_the_page() {
    let scene = Scene::start().await;
    let hostile = "---\nname: danger\ndescription: Shows <b>markup</b> \u{202e}and more\n---\n# Title\n\n\
                   <script>document.title = 'owned'</script>\n\n[link](javascript:alert(1)) **bold**\n";
    write(scene.root.path(), "public/danger/SKILL.md", hostile);
    let sheet = Sheet::open(&format!("http://{}/", scene.server.address)).await;
    let browser = &sheet.browser;
    sheet.click("skills").await;
    until("they are listed", async || rows(browser).await.len() == 2).await;
    let all = rows(browser).await;
    assert!(all[0].starts_with("danger\nShows <b>markup</b>") && !all[0].contains('\u{202e}'), "{all:?}");
    assert_eq!(all[1], "report\nMakes reports.");
    look(browser, "skills").await;

    let open = async |place: usize| {
        let script = format!(
            "document.querySelectorAll('[data-testid=skill-row]')[{place}].querySelector('button').click(); return null"
        );
        browser.script(&script).await;
    };
    open(0).await;
    sheet.says("skill-text", |text| text.contains("Title") && text.contains("<script>")).await;
    let links = "return [...document.querySelectorAll('#skill-text a')].map((a) => a.getAttribute('href'))";
    assert!(!browser.script(links).await.to_string().contains("javascript:"), "no link runs a script");
    assert_ne!(browser.script("return document.title").await, "owned");
    look(browser, "skill").await;
    browser.script("document.getElementById('skills-back').click(); return null").await;
    open(1).await;
    sheet.says("skill-files", |text| text.contains("scripts/run.py")).await;
    browser.script("document.getElementById('skills-back').click(); return null").await;

    let folder = tempfile::tempdir().expect("a folder");
    let upload = async |name: &str, files: &[(&str, &[u8])]| {
        let path = folder.path().join(format!("{name}.zip"));
        fs::write(&path, zipped(files)).expect("written");
        let input = browser.driver.find(By::Id("skills-zip")).await.expect("the field");
        input.send_keys(path.to_str().expect("a path")).await.expect("chosen");
    };
    upload("mine", &[("SKILL.md", skill_md("mine", "The first.").as_bytes())]).await;
    until("it is there", async || rows(browser).await.iter().any(|row| row.contains("yours · The first."))).await;
    upload("mine", &[("SKILL.md", skill_md("mine", "The second.").as_bytes())]).await;
    sheet.says("confirm-dialog", |text| text.contains("Replace this skill?")).await;
    sheet.click("confirm-yes").await;
    until("it is another", async || rows(browser).await.iter().any(|row| row.contains("The second."))).await;
    upload("wrong", &[("SKILL.md", skill_md("other", "Another name.").as_bytes())]).await;
    sheet.says("skills-error", |text| text.contains("name")).await;
    look(browser, "skills-refused").await;
    browser.script("document.querySelector('[data-testid=skill-row] [data-act=delete]').click(); return null").await;
    sheet.click("confirm-yes").await;
    until("it is gone", async || rows(browser).await.len() == 2).await;
    assert_eq!(scene.listed(crate::support::server::TOKEN).await, ["public/danger", "public/report"]);
    sheet.browser.close().await;
    scene.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_skills_the_page_does_not_offer_any() {
    let server = FakeServer::with(&[]).await;
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    let hidden = "return document.querySelector('[data-testid=skills]').hidden";
    assert_eq!(sheet.browser.script(hidden).await, true);
    sheet.click("runner-info").await;
    let facts = sheet.browser.script("return document.getElementById('runner-facts').innerText").await;
    let facts = facts.as_str().expect("text");
    assert!(facts.contains("Memory") && facts.contains("of a core"), "a runner's limits are shown: {facts}");
    sheet.browser.close().await;
    server.stop().await;
}
