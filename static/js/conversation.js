// Owns the choice of the conversation: a new one in a new tab, the same one after a reload, or any id that is entered.
import { byId, el, showText } from "./dom.js";
import { store } from "./store.js";

const VALID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
const REMEMBERED_MAX = 20;

export class Conversation {
  #changed;
  #input = byId("conversation");
  #recent = byId("recent");

  /** `changed(id)` is called whenever another conversation is chosen, not for the first one. */
  constructor(changed) {
    this.#changed = changed;
    if (!store.conversations.length) store.conversations = [freshId()];
    this.#input.addEventListener("change", () => this.#commit());
    this.#input.addEventListener("input", () => showText(byId("conversation-error"), ""));
    this.#input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#show();
    });
    byId("conversation-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#commit();
    });
    byId("new-conversation").addEventListener("click", () => this.#open(freshId()));
    this.#recent.addEventListener("change", () => this.#open(this.#recent.value));
    this.#show();
  }

  get id() {
    return store.conversations[0];
  }

  #commit() {
    const id = this.#input.value.trim();
    if (id === this.id) return this.#show();
    if (VALID.test(id)) return this.#open(id);
    this.#input.setAttribute("aria-invalid", "true");
    showText(
      byId("conversation-error"),
      "1 to 128 letters, digits, dots, hyphens or underscores, beginning with a letter or digit.",
    );
  }

  #open(id) {
    store.conversations = [id, ...store.conversations.filter((other) => other !== id)].slice(0, REMEMBERED_MAX);
    this.#show();
    this.#changed(id);
  }

  #show() {
    this.#input.value = this.id;
    this.#input.title = this.id;
    this.#input.removeAttribute("aria-invalid");
    showText(byId("conversation-error"), "");
    this.#recent.replaceChildren(...store.conversations.map((id) => el("option", { value: id }, id)));
    this.#recent.value = this.id;
  }
}

// randomUUID exists in secure contexts only, and plain HTTP to a local address is not one.
function freshId() {
  const random =
    crypto.randomUUID?.() ??
    [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return `web-${random}`;
}
