// Starts the page for operators: one view at a time, named in the address behind #. What is seen is refreshed while it
// is seen. Each view has `load()`.
import { Overview } from "./js/admin/overview.js";
import { Conversations, Doctor, Owners, Runs } from "./js/admin/lists.js";
import { Network } from "./js/admin/network.js";
import { Connections, Tokens } from "./js/admin/tokens.js";
import { Tools } from "./js/admin/tools.js";
import { Client } from "./js/client.js";
import { byId, showText } from "./js/dom.js";
import { closesBy, confirmAction, hideBanner, page, showBanner, toast } from "./js/page.js";
import { store } from "./js/store.js";
import { visibleName } from "./js/text.js";
import { startTheme } from "./js/theme.js";
import { Token } from "./js/token.js";

const REFRESH_MS = 5000;

const client = new Client(() => token.value);
const token = new Token({
  attempt: async (candidate, signal) => {
    await client.get("v1/admin/overview", { token: candidate, signal });
    store.useToken(candidate);
    ready();
  },
  forgotten: () => needToken(),
});

/** What the views share: requests, and how their failures are shown. */
const api = {
  get: (path) => client.get(path),
  post: (path, body) => client.post(path, body),
  put: (path, json) => client.put(path, json),
  remove: (path) => client.remove(path),
  failed(error) {
    if (error.needsToken) needToken("The server no longer accepts the token.");
    else if (error.code === "insufficient_scope" && !error.hasOldToken) needToken(visibleName(error.message));
  },
  /**
   * Does something for the view that is open; a failure is shown there. That of an `act` stays until the next one: to
   * `load` again does not take it away.
   */
  async run(action, kind = "act") {
    const shown = current;
    turns += 1;
    const complaint = byId(`error-${shown}`);
    try {
      await action();
      if (kind === "act" || complaint.dataset.of === "load") showText(complaint, "");
    } catch (error) {
      const text = visibleName(error.message);
      // The same text again would be read out again at each refresh.
      if (complaint.textContent !== text) showText(complaint, text);
      complaint.dataset.of = kind;
      api.failed(error);
    } finally {
      turns += 1;
    }
  },
  /** Asks a question; where the answer is yes, does something, says `done` and loads a view again. */
  confirmed(view, question, action, done) {
    return api.run(async () => {
      if (!(await confirmAction(question))) return;
      await action();
      toast(done);
      await view.load();
    });
  },
  /** Connects the form of this name and its dialog; `send()` sends what was typed. */
  form(name, send) {
    const [dialog, form] = [byId(`${name}-dialog`), byId(`${name}-form`)];
    let isChanged = false;
    form.addEventListener("input", () => (isChanged = true));
    form.addEventListener("reset", () => (isChanged = false));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      api.submit(name, send);
    });
    byId(`${name}-cancel`).addEventListener("click", () => dialog.close());
    // Escape may be pressed by mistake; Cancel is not.
    closesBy(dialog, async () => {
      const question = { title: "Discard the changes?", text: "What you typed has not been sent.", yes: "Discard" };
      if (!isChanged || (await confirmAction(question))) dialog.close();
    });
  },
  /** Sends the form of this name, once at a time; a failure is shown in it. */
  async submit(form, action) {
    // Not `disabled`: a disabled button loses the keyboard focus.
    const button = byId(`${form}-yes`);
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    try {
      await action();
    } catch (error) {
      showText(byId(`${form}-error`), visibleName(error.message));
      api.failed(error);
    } finally {
      button.removeAttribute("aria-disabled");
    }
  },
};

const views = {
  overview: new Overview(api),
  owners: new Owners(api),
  tokens: new Tokens(api),
  connections: new Connections(api),
  network: new Network(api),
  tools: new Tools(api),
  conversations: new Conversations(api),
  runs: new Runs(api),
  doctor: new Doctor(api),
};
let current = "overview";
let isLoading = false;
/** Counts each beginning and each end of an act or a load. */
let turns = 0;

startTheme(() => {});
addEventListener("hashchange", () => {
  // The link over the content leads to an element and not to a view.
  if (Object.hasOwn(views, location.hash.slice(1))) show().then(() => byId(`head-${current}`).focus());
});
document.addEventListener("visibilitychange", refresh);
setInterval(refresh, REFRESH_MS);
open();

async function open() {
  await show();
  if (!token.value) return needToken();
  try {
    await client.get("v1/admin/overview");
    ready();
  } catch (error) {
    if (error.hasOldToken) return;
    if (error.needsToken) return needToken("The server no longer accepts the token.");
    if (error.code === "insufficient_scope") return needToken(visibleName(error.message));
    page.state = "error";
    showBanner(visibleName(error.message), "Try again", open);
  }
}

function ready() {
  page.state = "ready";
  hideBanner();
  load();
}

function needToken(complaint) {
  page.state = "needs-token";
  showBanner("This page needs a token with the scope admin.", "Enter token", () => token.ask());
  token.ask(complaint);
}

/** Shows the view that the address names. */
async function show() {
  const wanted = location.hash.slice(1);
  current = Object.hasOwn(views, wanted) ? wanted : "overview";
  showText(byId(`error-${current}`), "");
  for (const name of Object.keys(views)) byId(`view-${name}`).hidden = name !== current;
  for (const link of document.querySelectorAll(".admin-nav a[href^='#']")) {
    if (link.hash === `#${current}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (page.state === "ready") await load();
}

async function load() {
  const view = byId(`view-${current}`);
  view.setAttribute("aria-busy", "true");
  await api.run(() => views[current].load(), "load");
  view.removeAttribute("aria-busy");
}

async function refresh() {
  const isSeen = page.state === "ready" && document.visibilityState === "visible" && !isLoading;
  // What an open dialog is about stays as it is.
  if (!isSeen || document.querySelector("dialog[open]")) return;
  isLoading = true;
  const before = turns;
  try {
    await load();
    // Its answers may be older than those of an act or a load that began or ended meanwhile.
    if (turns > before + 2) await load();
  } finally {
    isLoading = false;
  }
}
