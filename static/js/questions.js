// Owns the questions of a program whether a tool may be called: what will be sent, and four answers.
import { byId, el } from "./dom.js";
import { announce, toast } from "./page.js";
import { visibleName } from "./text.js";

/** What a person may answer, and what it means. */
const ANSWERS = [
  ["once", "Allow once", "This call, with exactly these arguments"],
  ["session", "Allow here for an hour", "This tool in this conversation"],
  ["always", "Always allow", "This tool, until its definition changes or you withdraw this answer"],
  ["no", "Deny", "The call is not made"],
];

export class Questions {
  #box = byId("questions");
  /** `{id, name, digest, row}` of the questions whose calls are not over, in order; the row of one may be removed. */
  #asked = [];
  #answer;
  #onFailure;

  /** `answer(id, word)` sends an answer. */
  constructor({ answer, onFailure }) {
    this.#answer = answer;
    this.#onFailure = onFailure;
  }

  clear() {
    leave(this.#box);
    this.#asked = [];
    this.#box.replaceChildren();
    this.#box.hidden = true;
  }

  /** Adds a question in the form of `/v1`; one that was answered before is not shown. */
  add({ id, server, tool, arguments: given, askedAt, answer }) {
    if (answer || this.#asked.some((asked) => asked.id === id)) return;
    const name = visibleName(`${server}/${tool}`);
    // Tells questions about equal calls apart.
    const time = new Date(askedAt).toLocaleTimeString();
    const complaint = el("p", { class: "field-error", role: "alert", hidden: true });
    const buttons = ANSWERS.map(([word, label, title]) => {
      const kind = word === "no" ? "button danger" : "button";
      return el("button", { class: kind, type: "button", title, "data-answer": word }, label);
    });
    const label = `May ${name} be called? Asked at ${time}`;
    const row = el(
      "section",
      { class: "question", "data-testid": "question", "aria-label": label },
      el("p", {}, "The program waits to call ", el("code", {}, name), `, asked at ${time}, with`),
      el("pre", { "data-testid": "question-arguments", tabindex: 0 }, pretty(given)),
      el("div", { class: "question-actions" }, ...buttons),
      complaint,
    );
    for (const button of buttons) button.addEventListener("click", () => this.#send(row, button, complaint, id));
    this.#asked.push({ id, name, digest: sha256(given), row });
    this.#box.append(row);
    this.#box.hidden = false;
    announce(`The program waits to call ${name}. Allow it?`);
  }

  /**
   * A call is over: the question about it was answered, here or elsewhere. Others about equal calls may still wait. One
   * that the program gave up leaves its question, which other calls may share, unless it was answered here.
   */
  async over({ server, tool, argumentsSha256, ended }) {
    const name = visibleName(`${server}/${tool}`);
    for (const asked of [...this.#asked]) {
      const isSame = asked.name === name && [null, argumentsSha256].includes(await asked.digest);
      // Another call may have ended meanwhile.
      if (!isSame || !this.#asked.includes(asked)) continue;
      if (ended === "cancelled" && asked.row.isConnected) continue;
      this.#asked = this.#asked.filter((other) => other !== asked);
      return this.#remove(asked.row);
    }
  }

  #remove(row) {
    leave(row);
    row.remove();
    this.#box.hidden = this.#box.childElementCount === 0;
  }

  async #send(row, button, complaint, id) {
    const buttons = row.querySelectorAll("button");
    leave(row);
    for (const one of buttons) one.disabled = true;
    try {
      await this.#answer(id, button.dataset.answer);
      this.#remove(row);
      toast(button.dataset.answer === "no" ? "Denied." : "Allowed.");
    } catch (error) {
      for (const one of buttons) one.disabled = false;
      complaint.textContent = visibleName(error.message);
      complaint.hidden = false;
      this.#onFailure(error);
    }
  }
}

// Takes the focus off a row: not to the next question, because one more Enter would answer it.
function leave(row) {
  if (row.contains(document.activeElement)) byId("output-body").focus({ preventScroll: true });
}

// Null where the page came over plain HTTP from another machine, which has no digests.
async function sha256(text) {
  if (!crypto.subtle) return null;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** JSON on several lines; what would hide text is visible. It is not parsed, because long numbers would be others. */
function pretty(text) {
  let depth = 0;
  const newline = (by) => `\n${"  ".repeat((depth += by))}`;
  const laidOut = text.replace(/"(?:[^"\\]|\\.)*"|[{[][}\]]|[{}[\],:]/g, (token) => {
    if (token === "{" || token === "[") return token + newline(1);
    if (token === "}" || token === "]") return newline(-1) + token;
    if (token === ",") return token + newline(0);
    return token === ":" ? ": " : token;
  });
  const visible = (line) => line.replace(/^( *)(.*)$/su, (_, indent, rest) => indent + visibleName(rest));
  return laidOut.split("\n").map(visible).join("\n");
}
