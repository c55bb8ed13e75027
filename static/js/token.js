// Owns the access token: asks for it, tries it, keeps it for the tab or by choice for the browser, deletes it. It
// leaves the page only in the Authorization header.
import { byId, showText } from "./dom.js";
import { store } from "./store.js";

export class Token {
  #attempt;
  #forgotten;
  #dialog = byId("token-dialog");
  #input = byId("token-input");

  /**
   * `attempt(token, signal)` throws when the server refuses it or the user cancels; `forgotten()` is called when the
   * user deletes it.
   */
  constructor({ attempt, forgotten }) {
    this.#attempt = attempt;
    this.#forgotten = forgotten;
    byId("token").addEventListener("click", () => this.ask());
    byId("token-cancel").addEventListener("click", () => this.#dialog.close());
    byId("token-forget").addEventListener("click", () => this.#forget());
    byId("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    this.#dialog.addEventListener("close", () => {
      this.#input.value = "";
    });
  }

  get value() {
    return store.token ?? "";
  }

  ask(complaint = "") {
    showText(byId("token-error"), complaint);
    byId("token-forget").hidden = !store.token;
    if (!this.#dialog.open) byId("token-remember").checked = store.remembersToken;
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#input.focus();
  }

  async #save() {
    const token = this.#input.value.trim();
    const button = byId("token-save");
    if (button.disabled) return;
    if (!/^[\x21-\x7e]+$/.test(token)) {
      return this.ask(token ? "A token has only visible ASCII characters and no spaces." : "Enter the token.");
    }
    button.disabled = true;
    const closed = new AbortController();
    this.#dialog.addEventListener("close", () => closed.abort(), { once: true });
    try {
      await this.#attempt(token, closed.signal);
      store.keepToken(token, byId("token-remember").checked);
      this.#dialog.close();
    } catch (error) {
      // The event of a dialog that is closed comes later.
      if (closed.signal.aborted || !this.#dialog.open) return;
      this.ask(error.needsToken ? "The server refused this token." : error.message);
      this.#input.select();
    } finally {
      button.disabled = false;
    }
  }

  #forget() {
    store.keepToken(null, false);
    this.#dialog.close();
    this.#forgotten();
  }
}
