//! Kernels that were not made for this server, in images that have its labels: that of R from Debian, and xeus-python
//! from the Python Package Index.

use mcp_sandbox_server::{
    domain::{
        id::Language,
        outcome::{Ended, Limits},
        owner::{ConversationKey, Principal},
    },
    services::runs::{CellSession, Report, RunRequest},
};

use crate::support::{Server, images::Image, until};

const OK: Ended = Ended::Exited { code: 0 };

/// A server that offers an image's language.
struct Offered {
    server: Server,
    image: Image,
    language: Language,
}

impl Offered {
    async fn from(fixture: &str) -> Self {
        let settings = [("SANDBOX_LIMITS__WALL_MS", "60000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0")];
        let (server, image) = (Server::with(&settings).await, Image::new("kernel"));
        image.build(fixture);
        let language = image.language.parse().expect("a language");
        until("the language is known", async || server.catalog.find(&language).is_some()).await;
        Self { server, image, language }
    }

    async fn report(&self, session: Option<CellSession>, limits: Option<Limits>, code: &str) -> Report {
        let conversation = ConversationKey::new(Principal::default(), "foreign".parse().expect("an id"));
        let request = RunRequest::new(conversation, self.language.clone(), code.to_owned().into());
        let request = RunRequest { session, limits, detach: Some(true), ..request };
        let report = self.server.runs.begin(request).expect("a run").finished().await.expect("a report");
        Report::clone(&report)
    }

    async fn cell(&self, code: &str) -> Report {
        self.report(Some(CellSession::Any), None, code).await
    }

    /// A cell that does not end by itself.
    async fn late(&self, code: &str) -> Report {
        let limits = Limits { wall_ms: 5000, ..Limits::UNBOUNDED };
        self.report(Some(CellSession::Any), Some(limits), code).await
    }

    /// What a cell that succeeds prints.
    async fn printed(&self, code: &str) -> String {
        let report = self.cell(code).await;
        assert_eq!(report.outcome.ended, OK, "{code}: {}", report.stderr.text);
        report.stdout.text
    }

    async fn stop(self) {
        self.server.stop().await;
        drop(self.image);
    }
}

/// Its sockets have other names than Jupyter's, and its control channel understands no interrupt.
#[tokio::test(flavor = "multi_thread")]
async fn irkernel_remembers_fails_shows_and_is_interrupted() {
    let r = Offered::from("kernels/r").await;
    assert_eq!(r.printed("a <- 41").await, "");
    assert_eq!(r.printed("a + 1").await, "42\n");
    let failed = r.cell("stop('oh')").await;
    assert_eq!(failed.outcome.ended, Ended::Exited { code: 1 });
    assert!(failed.stderr.text.contains("Error: oh"), "{}", failed.stderr.text);
    let plot = r.cell("plot(1:3)").await;
    assert_eq!((plot.outcome.ended, plot.files.changed), (OK, 1), "{}", plot.stderr.text);
    let late = r.late("repeat {}").await;
    assert_eq!(late.outcome.ended, Ended::TimedOut, "{}", late.stderr.text);
    assert_eq!(r.printed("a + 1").await, "42\n");
    assert_eq!(r.report(None, None, "cat(6 * 7, '\\n')").await.stdout.text, "42 \n", "programs run in the same image");
    r.stop().await;
}

/// SIGINT ends it, as under Jupyter, so the session ends when a cell does not end in time.
#[tokio::test(flavor = "multi_thread")]
async fn xeus_python_remembers_fails_and_is_ended_by_its_interrupt() {
    let xeus = Offered::from("kernels/xeus").await;
    assert_eq!(xeus.printed("a = 41").await, "");
    assert_eq!(xeus.printed("a + 1").await, "42\n");
    let failed = xeus.cell("1/0").await;
    assert_eq!(failed.outcome.ended, Ended::Exited { code: 1 });
    let traceback = failed.stderr.text;
    assert!(
        traceback.contains("ZeroDivisionError: division by zero") && !traceback.contains('\u{1b}'),
        "{traceback:?}"
    );
    xeus.printed("open('kept', 'w').close()").await;
    let late = xeus.late("while True: pass").await;
    assert_eq!(late.outcome.ended, Ended::TimedOut, "{}", late.stderr.text);
    assert!(late.stderr.text.contains("its variables are gone"), "{}", late.stderr.text);
    let after = xeus.cell("import os; print(os.listdir()); a").await;
    assert!(after.stdout.text.contains("kept") && after.stderr.text.contains("NameError"), "{}", after.stderr.text);
    xeus.stop().await;
}
