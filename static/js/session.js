// Owns the session of the open conversation and the chosen language: the switch beside Run, what its indicator says,
// the buttons that interrupt and restart it, and the request that runs a cell in it. The server owns the session, so
// what is known here is asked for again and again: one may end at any time, and others may use it too.
import { byId, showText } from "./dom.js";
import { displayName } from "./languages.js";
import { announce, confirmAction, page, toast } from "./page.js";
import { store } from "./store.js";
import { visibleName } from "./text.js";

const INTERVAL_MS = 3000;
const WORDS = { none: "Not started", starting: "Starting", idle: "Idle", busy: "Busy", gone: "Gone" };
const NONE = Object.freeze({ id: null, state: "none", why: "" });

export class Session {
  #client;
  #conversation;
  #onSwitch;
  #onFailure;
  #switch = byId("session");
  #runner = null;
  /** What is known of this conversation's sessions, by language: `{ id, state, why }`. */
  #known = new Map();
  /**
   * Numbers of the newest request, and of the newest that was answered or preceded a change made here: answers to older
   * ones are dropped.
   */
  #asked = 0;
  #settled = 0;

  /** `onSwitch(on)` is called when Run begins or ceases to mean a cell. */
  constructor({ client, conversation, onSwitch, onFailure }) {
    this.#client = client;
    this.#conversation = conversation;
    this.#onSwitch = onSwitch;
    this.#onFailure = onFailure;
    this.#switch.addEventListener("click", () => {
      store.keepSession(this.#conversation(), !store.usesSession(this.#conversation()));
      this.#switched();
    });
    byId("session-interrupt").addEventListener("click", () => this.#interrupt());
    byId("session-restart").addEventListener("click", () => this.#restart());
    const look = () => {
      if (!document.hidden && (page.state === "ready" || page.state === "running")) this.refresh();
    };
    document.addEventListener("visibilitychange", look);
    setInterval(look, INTERVAL_MS);
  }

  /** Whether Run executes a cell. */
  get isOn() {
    return this.#runner?.sessions === true && store.usesSession(this.#conversation());
  }

  /** Another language was chosen: `runner` in the form of `/v1`. */
  offer(runner) {
    this.#runner = runner;
    this.#switched();
  }

  /** Another conversation is open. */
  open() {
    this.#known = new Map();
    this.#switched();
  }

  /** Runs a cell, in a new session when there is none; resolves to its run. Throws a ServerError. */
  async cell({ conversationId, language, code, stdin }) {
    // That of this conversation, whichever is open when the answers arrive.
    const known = this.#known;
    const before = this.#of(language, known);
    try {
      const open = before.id && before.state !== "gone" ? before : await this.#opened(conversationId, language, known);
      this.#set(known, language, { id: open.id, state: "busy" });
      return await this.#client.createCell(open.id, { code, stdin });
    } catch (error) {
      const gone = error.status === 410 || error.code === "session_not_found";
      if (gone) this.#set(known, language, { id: null, state: "gone", why: error.message });
      else if (this.#of(language, known).state === "starting") this.#set(known, language, before);
      else this.refresh();
      throw error;
    }
  }

  /** Asks the server again. */
  async refresh() {
    if (!this.isOn) return;
    const known = this.#known;
    const { language } = this.#runner;
    const { id, state } = this.#of(language);
    if (state === "starting") return;
    const asked = (this.#asked += 1);
    try {
      const sessions = await this.#client.listSessions(this.#conversation());
      const found = sessions.find((session) => session.language === language);
      const now = found ? { id: found.sessionId, state: found.state } : id ? await this.#endOf(id) : null;
      if (now && asked > this.#settled) this.#set(known, language, now, asked);
    } catch (error) {
      this.#onFailure(error);
    }
  }

  // A session that is no longer listed: the server says why.
  async #endOf(id) {
    try {
      const { state } = await this.#client.getSession(id);
      return { id, state };
    } catch (error) {
      if (error.status !== 410 && error.status !== 404) throw error;
      return { id: null, state: "gone", why: error.message };
    }
  }

  async #opened(conversationId, language, known) {
    this.#set(known, language, { id: null, state: "starting" });
    const { sessionId } = await this.#client.createSession({ conversationId, language });
    return { id: sessionId };
  }

  async #interrupt() {
    const { id, state } = this.#of(this.#runner.language);
    if (state !== "busy") return;
    try {
      await this.#client.interruptSession(id);
      announce("Interrupted. The variables stay.");
    } catch (error) {
      this.#failed("interrupted", error);
    }
  }

  async #restart() {
    const known = this.#known;
    const { language } = this.#runner;
    const before = this.#of(language);
    if (before.state !== "idle" && before.state !== "busy") return;
    const text = "Its variables are lost, and a cell that runs is stopped. The files stay.";
    if (!(await confirmAction({ title: "Restart the session?", text, yes: "Restart" }))) return;
    this.#set(known, language, { id: before.id, state: "starting" });
    try {
      const { state } = await this.#client.restartSession(before.id);
      this.#set(known, language, { id: before.id, state });
      announce("The session was restarted. Its variables are gone.");
    } catch (error) {
      this.#set(known, language, before);
      this.#failed("restarted", error);
    }
  }

  #failed(what, error) {
    toast(`The session could not be ${what}: ${visibleName(error.message)}`);
    this.#onFailure(error);
    this.refresh();
  }

  #of(language, known = this.#known) {
    return known.get(language) ?? NONE;
  }

  #set(known, language, { id, state, why = "" }, asked = this.#asked) {
    this.#settled = asked;
    const before = this.#of(language, known);
    known.set(language, { id, state, why });
    if (known !== this.#known || (before.state === state && before.why === why)) return;
    this.#show();
    if (state === "gone" && this.isOn) announce(visibleName(why));
  }

  #switched() {
    this.#show();
    this.#onSwitch(this.isOn);
    this.refresh();
  }

  #show() {
    const offered = this.#runner?.sessions === true;
    this.#switch.hidden = !offered;
    this.#switch.setAttribute("aria-checked", String(this.isOn));
    byId("session-bar").hidden = !this.isOn;
    if (!this.isOn) return;
    const { language } = this.#runner;
    const { state, why } = this.#of(language);
    const word = Object.hasOwn(WORDS, state) ? WORDS[state] : visibleName(String(state));
    byId("session-state").dataset.state = state;
    byId("session-word").textContent = word;
    byId("session-name").textContent = `${visibleName(displayName(language))} session`;
    showText(byId("session-why"), visibleName(why));
    byId("session-interrupt").setAttribute("aria-disabled", String(state !== "busy"));
    byId("session-restart").setAttribute("aria-disabled", String(state !== "idle" && state !== "busy"));
  }
}
