// Owns what this tab remembers: token, theme, conversations, draft, programs. Only sessionStorage is used, so that
// closing the tab deletes all of it and no other tab can read the token. Where storage is disabled, memory replaces it.

const PREFIX = "sandbox.";
// Together below the usual limit of a page: five million characters.
const PROGRAMS_MAX = 40;
const PROGRAM_CHARS_MAX = 50_000;
const memory = new Map();

function read(key) {
  try {
    return sessionStorage.getItem(PREFIX + key) ?? memory.get(key) ?? null;
  } catch {
    return memory.get(key) ?? null;
  }
}

function write(key, value) {
  memory.delete(key);
  try {
    if (value === null) sessionStorage.removeItem(PREFIX + key);
    else sessionStorage.setItem(PREFIX + key, value);
  } catch {
    if (value !== null) memory.set(key, value);
  }
}

function readJson(key) {
  try {
    return JSON.parse(read(key) ?? "null");
  } catch {
    return null;
  }
}

export const store = {
  get token() {
    return read("token");
  },
  set token(value) {
    write("token", value);
  },
  get theme() {
    return read("theme");
  },
  set theme(value) {
    write("theme", value);
  },
  get conversations() {
    const list = readJson("conversations");
    return Array.isArray(list) ? list.filter((id) => typeof id === "string") : [];
  },
  set conversations(list) {
    write("conversations", JSON.stringify(list));
  },
  get wrap() {
    return read("wrap") === "1";
  },
  set wrap(on) {
    write("wrap", on ? "1" : null);
  },
  /** `{language, text}` or null. */
  get draft() {
    const draft = readJson("draft");
    return typeof draft?.text === "string" ? draft : null;
  },
  set draft(value) {
    write("draft", JSON.stringify(value));
  },
  /** The program `{language, code}` of a run that was started in this tab, or null. */
  programOf(runId) {
    const kept = readJson("programs");
    return (Array.isArray(kept) && kept.find((program) => program?.runId === runId)) || null;
  },
  remember(runId, { language, code }) {
    if (code.length > PROGRAM_CHARS_MAX) return;
    const kept = readJson("programs");
    const older = Array.isArray(kept) ? kept.slice(0, PROGRAMS_MAX - 1) : [];
    write("programs", JSON.stringify([{ runId, language, code }, ...older]));
  },
};
