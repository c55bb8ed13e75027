// Owns what this browser remembers. Token, conversations, runs elsewhere, draft, programs and input typed for them are
// in sessionStorage, so that closing the tab deletes them; the token also beyond that when the user asked for it.
// Choices about the look are in localStorage. Where storage is disabled, memory replaces it.

const PREFIX = "sandbox.";
// Together below the usual limit of a page: five million characters.
const PROGRAMS_MAX = 40;
const PROGRAM_CHARS_MAX = 50_000;
const SESSIONS_MAX = 100;
const TYPED_MAX = 200;
// One more than the terminal shows.
const TYPED_CHARS_MAX = 4097;

class Area {
  #storage;
  #memory = new Map();

  /** `storage()` returns a Storage, or throws where it is disabled. */
  constructor(storage) {
    this.#storage = storage;
  }

  // What did not fit into the storage is in memory, and newer than what the storage has.
  read(key) {
    if (this.#memory.has(key)) return this.#memory.get(key);
    try {
      return this.#storage().getItem(PREFIX + key);
    } catch {
      return null;
    }
  }

  write(key, value) {
    this.#memory.delete(key);
    try {
      if (value === null) this.#storage().removeItem(PREFIX + key);
      else this.#storage().setItem(PREFIX + key, value);
    } catch {
      this.#memory.set(key, value);
    }
  }

  readJson(key) {
    try {
      return JSON.parse(this.read(key) ?? "null");
    } catch {
      return null;
    }
  }

  writeJson(key, value) {
    this.write(key, JSON.stringify(value));
  }
}

const tab = new Area(() => sessionStorage);
const browser = new Area(() => localStorage);

export const store = {
  get token() {
    return tab.read("token") ?? browser.read("token");
  },
  /** Whether the token is kept when the tab is closed. */
  get remembersToken() {
    return browser.read("token") !== null;
  },
  /** Keeps a token in this tab. The browser may remember another, which is that of other tabs. */
  useToken(token) {
    tab.write("token", token);
  },
  keepToken(token, remember) {
    tab.write("token", token);
    browser.write("token", remember ? token : null);
  },
  /** A choice about the look of the page, or null. */
  choice(name) {
    return browser.read(name);
  },
  choose(name, value) {
    browser.write(name, value);
  },
  get conversations() {
    const list = tab.readJson("conversations");
    return Array.isArray(list) ? list.filter((id) => typeof id === "string") : [];
  },
  set conversations(list) {
    tab.writeJson("conversations", list);
  },
  /** Whether Run executes cells of a session in this conversation. */
  usesSession(conversationId) {
    const kept = tab.readJson("sessions");
    return Array.isArray(kept) && kept.includes(conversationId);
  },
  keepSession(conversationId, uses) {
    const kept = tab.readJson("sessions");
    const others = Array.isArray(kept) ? kept.filter((id) => id !== conversationId) : [];
    tab.writeJson("sessions", (uses ? [conversationId, ...others] : others).slice(0, SESSIONS_MAX));
  },
  /** The runs `{runId, conversationId, language}` that go on in other conversations. */
  get elsewhere() {
    const runs = tab.readJson("elsewhere");
    return Array.isArray(runs) ? runs.filter((run) => typeof run?.runId === "string") : [];
  },
  set elsewhere(runs) {
    tab.writeJson("elsewhere", runs);
  },
  /** `{language, text, line, stdin}` or null; `line` are the arguments. */
  get draft() {
    const draft = tab.readJson("draft");
    return typeof draft?.text === "string" ? draft : null;
  },
  set draft(value) {
    tab.writeJson("draft", value);
  },
  /** The program `{language, code, args, stdin}` of a run that was started in this tab, or null. */
  programOf(runId) {
    const kept = tab.readJson("programs");
    return (Array.isArray(kept) && kept.find((program) => program?.runId === runId)) || null;
  },
  remember(runId, { language, code, args, stdin }) {
    if (code.length + (stdin?.length ?? 0) > PROGRAM_CHARS_MAX) return;
    const kept = tab.readJson("programs");
    const older = Array.isArray(kept) ? kept.slice(0, PROGRAMS_MAX - 1) : [];
    tab.writeJson("programs", [{ runId, language, code, args, stdin }, ...older]);
  },
  /** The pieces of input `{runId, text, after}` that this tab sent, the newest ones; `after` is the event before. */
  get typed() {
    const kept = tab.readJson("typed");
    return Array.isArray(kept) ? kept.filter((piece) => typeof piece?.text === "string") : [];
  },
  keepTyped(runId, { text, after }) {
    const piece = { runId, text: text.slice(0, TYPED_CHARS_MAX), after };
    tab.writeJson("typed", [...this.typed, piece].slice(-TYPED_MAX));
  },
};
