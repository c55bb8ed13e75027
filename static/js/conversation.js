// Owns the choice of the conversation: named by the page's address, a new one in a new tab, the same one after a
// reload, or any id that is entered or chosen from the server's list.
import { byId, el, icon, showText } from "./dom.js";
import { announce, confirmAction, page, toast } from "./page.js";
import { store } from "./store.js";
import { ago, bytes, visibleName } from "./text.js";

const VALID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
const REMEMBERED_MAX = 20;
// The server lists by name and the dialog by age, so it reads these pages at once; more on demand.
const PAGES = 10;
const PARAMETER = "c";

export class Conversation {
  #client;
  #changed;
  #onFailure;
  #input = byId("conversation");
  #dialog = byId("conversations-dialog");
  /** The server's answers so far, by id, and the `after` of the next page. */
  #listed = new Map();
  #after = null;
  /** How often the dialog was opened. */
  #browsed = 0;

  /** `changed(id)` is called whenever another conversation is chosen, not for the first one. */
  constructor({ client, changed, onFailure }) {
    this.#client = client;
    this.#changed = changed;
    this.#onFailure = onFailure;
    const first = inAddress() ?? store.conversations[0] ?? freshId();
    this.#keep(first);
    history.replaceState(null, "", addressOf(first));
    addEventListener("popstate", () => {
      const id = inAddress();
      if (id && id !== this.id) this.open(id, { push: false });
    });
    this.#input.addEventListener("change", () => this.#commit());
    this.#input.addEventListener("input", () => showText(byId("conversation-error"), ""));
    this.#input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#show();
    });
    byId("conversation-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#commit();
    });
    byId("new-conversation").addEventListener("click", () => this.open(freshId()));
    byId("conversations").addEventListener("click", () => this.#browse());
    byId("conversations-close").addEventListener("click", () => this.#dialog.close());
    byId("conversations-more").addEventListener("click", () => this.#load());
    byId("conversations-list").addEventListener("click", (event) => this.#picked(event));
    page.onState((state) => {
      byId("conversations").disabled = state === "needs-token" || state === "error" || state === "loading";
    });
    this.#show();
  }

  get id() {
    return store.conversations[0];
  }

  open(id, { push = true } = {}) {
    if (push && id !== this.id) history.pushState(null, "", addressOf(id));
    this.#keep(id);
    this.#show();
    this.#changed(id);
  }

  #keep(id) {
    store.conversations = [id, ...store.conversations.filter((other) => other !== id)].slice(0, REMEMBERED_MAX);
  }

  #commit() {
    const id = this.#input.value.trim();
    if (id === this.id) return this.#show();
    if (VALID.test(id)) return this.open(id);
    this.#input.setAttribute("aria-invalid", "true");
    showText(
      byId("conversation-error"),
      "1 to 128 letters, digits, dots, hyphens or underscores, beginning with a letter or digit.",
    );
  }

  #show() {
    this.#input.value = this.id;
    this.#input.title = this.id;
    this.#input.removeAttribute("aria-invalid");
    showText(byId("conversation-error"), "");
  }

  #browse() {
    this.#browsed += 1;
    this.#listed.clear();
    this.#after = null;
    this.#fill();
    this.#dialog.showModal();
    this.#load();
  }

  async #load() {
    const asked = this.#browsed;
    showText(byId("conversations-error"), "");
    try {
      for (let page = 0; page < PAGES; page += 1) {
        const { conversations = [], after = null } = await this.#client.listConversations(this.#after);
        if (asked !== this.#browsed) return;
        for (const one of conversations) this.#listed.set(one.conversationId, one);
        this.#after = after;
        if (!after) break;
      }
    } catch (error) {
      this.#onFailure(error);
      if (asked !== this.#browsed) return;
      showText(byId("conversations-error"), visibleName(error.message));
    }
    this.#fill();
  }

  // Those of the server, newest first, and those of this tab, which may have no files yet.
  #fill() {
    const own = store.conversations.map((conversationId) => ({ conversationId }));
    const all = new Map(own.map((one) => [one.conversationId, one]));
    for (const [id, one] of this.#listed) all.set(id, one);
    const time = ({ usedAt }) => Date.parse(usedAt) || Infinity;
    const sorted = [...all.values()].sort((a, b) => (time(b) > time(a) ? 1 : time(b) < time(a) ? -1 : 0));
    byId("conversations-list").replaceChildren(...sorted.map((one) => row(one, one.conversationId === this.id)));
    byId("conversations-more").hidden = !this.#after;
  }

  #picked(event) {
    const button = event.target.closest("button");
    const id = button?.closest("li").dataset.conversation;
    if (!id) return;
    if (button.dataset.act === "delete") return this.#delete(id);
    this.#dialog.close();
    if (id !== this.id) this.open(id);
  }

  async #delete(id) {
    const text = `${visibleName(id)}\nIts files are deleted with it.`;
    if (!(await confirmAction({ title: "Delete this conversation?", text, yes: "Delete" }))) return;
    try {
      await this.#client.deleteConversation(id);
    } catch (error) {
      // One without files is not on the server.
      if (error.status !== 404) {
        showText(byId("conversations-error"), visibleName(error.message));
        this.#onFailure(error);
        return;
      }
    }
    this.#listed.delete(id);
    const others = store.conversations.filter((other) => other !== id);
    const wasOpen = id === this.id;
    store.conversations = others;
    announce(`Deleted ${visibleName(id)}.`);
    if (wasOpen) {
      this.#dialog.close();
      this.open(freshId());
      return toast("The conversation was deleted. This is a new one.");
    }
    this.#fill();
    (byId("conversations-list").querySelector("button") ?? byId("conversations-close")).focus();
  }
}

function row({ conversationId, usedAt, bytes: size }, current) {
  const name = visibleName(conversationId);
  const facts = [
    Number.isFinite(size) && bytes(size),
    usedAt ? ago(usedAt) : "nothing on the server yet",
  ];
  const open = el(
    "button",
    { class: "conversation-open", type: "button", "aria-current": current ? "true" : false },
    el("span", { class: "conversation-name" }, name),
    el(
      "span",
      { class: "conversation-facts", title: usedAt && new Date(usedAt).toLocaleString() },
      facts.filter(Boolean).join(" · "),
    ),
  );
  const bin = el(
    "button",
    {
      class: "button quiet square",
      type: "button",
      "data-act": "delete",
      "aria-label": `Delete ${name}`,
      title: "Delete",
    },
    icon("trash"),
  );
  return el("li", { "data-conversation": conversationId, "data-testid": "conversation-row" }, open, bin);
}

function inAddress() {
  const id = new URLSearchParams(location.search).get(PARAMETER);
  return id && VALID.test(id) ? id : null;
}

function addressOf(id) {
  const url = new URL(location.href);
  url.search = new URLSearchParams({ [PARAMETER]: id }).toString();
  return url;
}

// randomUUID exists in secure contexts only, and plain HTTP to a local address is not one.
function freshId() {
  const random =
    crypto.randomUUID?.() ??
    [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return `web-${random}`;
}
