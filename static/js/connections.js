// Owns the list of the connections and the calls of tools that a run made or was refused: one row for each host or tool
// and what became of it.
import { byId, el } from "./dom.js";
import { bytes, duration, plural, visibleName } from "./text.js";

export class Connections {
  #box = byId("connections");
  #summary = byId("connections-summary");
  #list = byId("connections-list");
  /** Rows by host, port and reason, in the order they came. */
  #rows = new Map();

  clear() {
    this.#rows.clear();
    this.#list.replaceChildren();
    this.#box.hidden = true;
    this.#box.open = false;
  }

  /** Adds a connection that is over, in the form of `/v1`. */
  add({ target, decision, message, receivedBytes, sentBytes, ms }) {
    const key = JSON.stringify([target, decision, message]);
    const row = this.#rows.get(key) ?? this.#begin(key, target, decision);
    row.count += 1;
    row.received += receivedBytes;
    row.sent += sentBytes;
    row.ms += ms;
    row.note.textContent = visibleName(message ?? describe(row));
    if (row.count > 1) row.times.textContent = `\u00d7${row.count}`;
    this.#summary.textContent = this.#count();
    this.#box.hidden = false;
  }

  /** Adds a call of a tool that is over, in the form of `/v1`. */
  call({ server, tool, decision, message, ms }) {
    const target = `${server}/${tool}`;
    const key = JSON.stringify([target, decision, message, "tool"]);
    const row = this.#rows.get(key) ?? this.#begin(key, target, decision);
    row.isCall = true;
    row.count += 1;
    row.ms += ms;
    row.note.textContent = visibleName(message ?? duration(row.ms));
    if (row.count > 1) row.times.textContent = `\u00d7${row.count}`;
    this.#summary.textContent = this.#count();
    this.#box.hidden = false;
  }

  #begin(key, target, decision) {
    const [times, note] = [el("span", { class: "connection-times" }), el("span", { class: "connection-note" })];
    const word = el("span", { class: "connection-word" }, decision);
    const name = el("code", {}, visibleName(target));
    this.#list.append(el("li", { "data-decision": decision, "data-testid": "connection" }, word, name, times, note));
    const row = { decision, times, note, count: 0, received: 0, sent: 0, ms: 0 };
    this.#rows.set(key, row);
    return row;
  }

  #count() {
    const part = (what, noun, rows) => {
      const total = (wanted) => rows.reduce((sum, { decision, count }) => sum + (wanted(decision) ? count : 0), 0);
      const parts = [plural(total((decision) => decision === "allowed"), noun)];
      for (const word of ["refused", "failed"]) {
        const count = total((decision) => decision === word);
        if (count) parts.push(`${count} ${word}`);
      }
      return rows.length ? [`${what}: ${parts.join(", ")}`] : [];
    };
    const [rows, isCall] = [[...this.#rows.values()], (row) => row.isCall === true];
    const connections = part("Network", "connection", rows.filter((row) => !isCall(row)));
    return [...connections, ...part("Tools", "call", rows.filter(isCall))].join(" \u00b7 ");
  }
}

function describe({ received, sent, ms }) {
  return `${bytes(received)} received, ${bytes(sent)} sent, ${duration(ms)}`;
}
