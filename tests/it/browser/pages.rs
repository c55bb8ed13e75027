//! Pages for a browser: some build themselves late, some attack.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Query, Request},
    http::{HeaderMap, header},
    middleware::{self, Next},
    response::{Html, IntoResponse, Redirect},
    routing::{get, post},
};
use futures_util::stream;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// Loopback, and not 127.0.0.1, which is the sandbox's own.
const ADDRESS: &str = "127.0.0.2:0";

pub struct Pages {
    pub allowed: SocketAddr,
    /// The same pages at a port that no policy names.
    pub refused: SocketAddr,
    refused_requests: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Pages {
    pub async fn start() -> Self {
        let (allowed, refused) = (listener().await, listener().await);
        let addresses = [&allowed, &refused].map(|listener| listener.local_addr().expect("an address"));
        let refused_requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&refused_requests);
        let count = middleware::from_fn(move |request: Request, next: Next| {
            counted.fetch_add(1, Ordering::Relaxed);
            next.run(request)
        });
        let mut tasks = JoinSet::new();
        let router = router(addresses[1]);
        for (listener, router) in [(allowed, router.clone()), (refused, router.layer(count))] {
            tasks.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        }
        Self { allowed: addresses[0], refused: addresses[1], refused_requests, _tasks: tasks }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.allowed)
    }

    /// Requests that came where none may come.
    pub fn refused_requests(&self) -> usize {
        self.refused_requests.load(Ordering::Relaxed)
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind(ADDRESS).await.expect("a port")
}

fn page(title: &str, body: &str) -> Html<String> {
    Html(format!("<!doctype html><title>{title}</title><body>{body}"))
}

/// Bytes without an end.
fn flood() -> Body {
    Body::from_stream(stream::unfold((), |()| async {
        sleep(Duration::from_millis(20)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 16 << 10])), ()))
    }))
}

fn router(refused: SocketAddr) -> Router {
    let outer = "outer <iframe name=inner src=/form></iframe>\
        <div style='display:none'>never shown</div>\
        <script>setTimeout(() => document.body.append('built late'), 50)</script>";
    let shadow = "<x-box></x-box><script>customElements.define('x-box', class extends HTMLElement {
        constructor() { super(); this.attachShadow({mode: 'open'}).innerHTML =
            '<p>in the shadow</p><button onclick=\"document.title = `pressed`\">Press</button>' } })</script>";
    let form = "<form method=post action=/post><label>Name <input name=who></label><input type=password name=secret>\
        <select name=colour><option>red<option>blue</select><button>Send it</button></form>";
    let named: String = ["tagName", "localName", "parentElement", "childNodes", "getAttribute", "nodeType"]
        .map(|name| format!("<input name={name} title=\"{name}\">"))
        .concat();
    let named = format!(
        "<img name=body><img name=title><form>{named}<select><option>red</select>\
         <button id=go type=button onclick=\"document.title = 'pressed'\">Go</button></form><p>after it"
    );
    let hostile = include_str!("hostile.html").replace("REFUSED", &refused.to_string());
    let endless = "before<script>setTimeout(() => { for (;;); }, 50)</script>";
    let greedy =
        "before<script>let all = []; setTimeout(() => { for (;;) all.push(new Array(1e6).fill(1.5)) }, 50)</script>";
    let link = |n: u32| format!("<a href=/{n}>link {n}</a> ");
    let links = |from: u32| (from..from + 30).map(link).collect::<Vec<_>>().concat();
    let (han, after) = ("漢".repeat(48 << 10), links(30) + "<form><button>Send</button></form>");
    let full = format!("{}{}<p>{han}</p>{after}", links(0), "<input>".repeat(5));
    let deep = "<div>".repeat(450) + "at the bottom";
    let noise = "<canvas id=c width=1200 height=1600></canvas><script>const it = c.getContext('2d'); \
        const all = it.createImageData(1200, 1600); for (let i = 0; i < all.data.length; i++) \
        all.data[i] = i % 4 === 3 ? 255 : Math.random() * 256; it.putImageData(all, 0, 0)</script>";
    let tall = "<img name=documentElement><form name=body><input name=scrollWidth><input name=scrollHeight></form>\
        <div style='height: 9000px'>tall</div>";
    let bare = "before<script>onload = () => document.body.remove()</script>";
    let windows = "<a id=new target=_blank href='/form'>open</a><script>alert('boo] [network')</script>";
    // Clicked by the page itself.
    let planted = "<a download=requests.py href='data:text/x-python,get=None'>x</a>\
        <script>document.querySelector('a').click()</script>";
    let attached = || {
        let name = [(header::CONTENT_DISPOSITION, "attachment; filename=\"../report.txt\"")];
        async move { (name, "the report") }
    };
    let flooded = async || ([(header::CONTENT_DISPOSITION, "attachment; filename=flood")], flood());
    let cookie = async |headers: HeaderMap| {
        let had = headers.get(header::COOKIE).is_some();
        ([(header::SET_COOKIE, "seen=1")], page("Cookie", if had { "known" } else { "new" })).into_response()
    };
    Router::new()
        .route("/late", get(page("Late", outer)))
        .route("/shadow", get(page("Shadow", shadow)))
        .route("/form", get(page("Form", form)))
        .route("/named", get(page("Named", &named)))
        .route("/post", post(async |body: String| page("Posted", &format!("got {body}"))))
        .route("/cookie", get(cookie))
        .route("/files", get(page("Files", "<a href=/report>the report</a> <a href=/flood>the flood</a>")))
        .route("/planted", get(page("Planted", planted)))
        .route("/report", get(attached))
        .route("/flood", get(flooded))
        .route("/noise", get(page("Noise", noise)))
        .route("/tall", get(page("Tall", tall)))
        .route("/full", get(page("Full", &full)))
        .route("/deep", get(page("Deep", &deep)))
        .route("/bare", get(page("Bare", bare)))
        .route("/windows", get(page("Windows", windows)))
        .route("/hostile", get(page("Hostile", &hostile)))
        .route("/moved", get(Redirect::to("/form")))
        .route("/away", get(Redirect::to(&format!("http://{refused}/form"))))
        .route("/endless", get(page("Endless", endless)))
        .route("/greedy", get(page("Greedy", greedy)))
        .route("/long", get(async || page("Long", &"word ".repeat(10 << 20))))
        .route(
            "/links",
            get(async || {
                let links: String =
                    (0..100_000).fold(String::new(), |all, n| all + format!("<a href=/{n}>link {n}</a> ").as_str());
                page("Links", &links)
            }),
        )
        .route(
            "/many",
            get(page(
                "Many",
                "<p id=o></p><script>(async () => { let n = 0; for (let i = 0; i < 10000; i += 50) { \
            await Promise.all([...Array(50).keys()].map(k => fetch('/echo?n=' + (i + k)).then(r => { n += r.ok }))) } \
            o.textContent = 'fetched ' + n; o.className = 'done' })()</script>",
            )),
        )
        .route("/echo", get(async |_: Query<Vec<(String, String)>>| "ok"))
}
