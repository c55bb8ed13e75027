// Owns the views of owners, conversations, slow and failing runs, and the checks of the server.
import { byId, el, icon } from "../dom.js";
import { announce } from "../page.js";
import { ago, bytes, duration, plural, visibleName } from "../text.js";
import { Table, act, moment, name, word } from "./table.js";

const MEASURING = "not measured yet";
const LEVELS = { ok: ["ok", "In order"], warn: ["limit", "Warning"], fail: ["fail", "Failure"] };

export class Owners {
  #api;
  #table;

  constructor(api) {
    this.#api = api;
    this.#table = new Table({
      id: "owners",
      title: "Owners",
      empty: "There are no owners.",
      columns: [
        { name: "Owner", cell: (one) => name(one.owner), kind: "name" },
        { name: "Tokens", cell: (one) => one.tokens, kind: "number" },
        { name: "Connections", cell: (one) => one.connections, kind: "number" },
        { name: "Conversations", cell: (one) => one.conversations, kind: "number" },
        { name: "On disk", cell: (one) => bytes(one.bytes) + (one.unmeasured ? " or more" : ""), kind: "number" },
        { name: "Runs today", cell: (one) => one.runsToday, kind: "number" },
        { name: "CPU today", cell: (one) => duration(one.cpuMsToday), kind: "number" },
        { name: "Under way", cell: (one) => one.liveRuns, kind: "number" },
        { name: "Sessions", cell: (one) => one.sessions, kind: "number" },
      ],
    });
    byId("view-owners").append(this.#table.element);
  }

  async load() {
    const { owners } = await this.#api.get("v1/owners");
    this.#table.show(owners);
  }
}

export class Conversations {
  #api;
  #table;
  #pages = 1;

  constructor(api) {
    this.#api = api;
    this.#table = new Table({
      id: "conversations",
      title: "Conversations by size",
      empty: "There are no conversations.",
      onMore: () => {
        this.#pages += 1;
        this.#api.run(() => this.load(), "load");
      },
      columns: [
        { name: "Conversation", cell: (one) => name(one.conversationId), kind: "name" },
        { name: "Owner", cell: (one) => name(one.owner), kind: "name" },
        { name: "On disk", cell: (one) => (one.bytes === undefined ? MEASURING : bytes(one.bytes)), kind: "number" },
        { name: "Last used", cell: (one) => ago(one.lastUsedAt), kind: "nowrap" },
        { name: "Delete", cell: (one) => this.#delete(one), kind: "act" },
      ],
    });
    byId("view-conversations").append(this.#table.element);
  }

  async load() {
    const rows = [];
    let page = {};
    for (let number = 0; number < this.#pages && (number === 0 || page.cursor); number += 1) {
      const cursor = page.cursor ? `&cursor=${encodeURIComponent(page.cursor)}` : "";
      page = await this.#api.get(`v1/admin/conversations?limit=50${cursor}`);
      rows.push(...page.conversations);
    }
    this.#table.show(rows, { total: page.total, more: Boolean(page.cursor) });
  }

  #delete({ owner, conversationId }) {
    const shown = `${visibleName(owner)} / ${visibleName(conversationId)}`;
    const text = `${shown}\nIts files are deleted with it.`;
    const question = { title: "Delete this conversation?", text, yes: "Delete" };
    const path = `v1/admin/conversations/${encodeURIComponent(owner)}/${encodeURIComponent(conversationId)}`;
    const onClick = () => this.#api.confirmed(this, question, () => this.#api.remove(path), `Deleted ${shown}.`);
    return act({ key: `${owner}/${conversationId}`, label: "Delete", of: shown, symbol: "trash", onClick });
  }
}

export class Runs {
  #api;
  #tables;

  constructor(api) {
    this.#api = api;
    const columns = [
      { name: "Owner", cell: (run) => name(run.owner), kind: "name" },
      { name: "Conversation", cell: (run) => name(run.conversationId), kind: "name" },
      { name: "Language", cell: (run) => name(run.language) },
      { name: "Created", cell: (run) => moment(run.begunAt) },
      { name: "Took", cell: (run) => duration(run.tookMs), kind: "number" },
      { name: "Program", cell: (run) => duration(run.figures?.wallMs), kind: "number" },
      { name: "Ended", cell: endOf },
      { name: "What happened", cell: (run) => name(run.sentence), kind: "long" },
    ];
    this.#tables = {
      slowest: new Table({ id: "slowest", title: "Slowest runs", empty: "No runs ended in this period.", columns }),
      failing: new Table({ id: "failing", title: "Failing runs", empty: "No runs failed in this period.", columns }),
    };
    const select = byId("runs-since");
    select.addEventListener("change", () => this.#api.run(() => this.load(), "load"));
    byId("view-runs").append(...Object.values(this.#tables).map(({ element }) => element));
  }

  async load() {
    const hours = byId("runs-since").value;
    const from = hours ? `&from=${new Date(Date.now() - hours * 3_600_000).toISOString()}` : "";
    const lists = Object.entries(this.#tables).map(async ([which, table]) => {
      const { runs } = await this.#api.get(`v1/admin/runs?which=${which}&limit=50${from}`);
      // Another time may have been chosen meanwhile.
      if (hours === byId("runs-since").value) table.show(runs);
    });
    await Promise.all(lists);
  }
}

export class Doctor {
  #api;

  constructor(api) {
    this.#api = api;
    byId("doctor-run").addEventListener("click", () => this.#check());
  }

  /** Nothing is checked before the button is pressed. */
  async load() {}

  async #check() {
    const button = byId("doctor-run");
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    button.textContent = "Checking…";
    await this.#api.run(async () => {
      const { findings } = await this.#api.get("v1/admin/doctor");
      byId("findings").replaceChildren(...findings.map(finding));
      const bad = findings.filter(({ level }) => level !== "ok").length;
      announce(bad ? `${plural(bad, "finding")} to look at.` : "No problems were found.");
    });
    button.removeAttribute("aria-disabled");
    button.textContent = "Check the server";
  }
}

function finding({ level, check, detail, fix }) {
  const [symbol, label] = LEVELS[level] ?? LEVELS.warn;
  return el(
    "li",
    { class: "card", "data-level": level },
    icon(symbol),
    el(
      "div",
      {},
      el("strong", {}, visibleName(check)),
      el("span", { class: "sr-only" }, `, ${label}`),
      `: ${visibleName(detail)}`,
      fix ? el("div", { class: "finding-fix" }, `To do: ${visibleName(fix)}`) : null,
    ),
  );
}

function endOf({ ended, exitCode, error }) {
  if (ended === "exited") return word(`status ${exitCode}`, exitCode === 0 ? "ok" : "fail");
  if (ended === "cancelled") return word("cancelled");
  const kind = ["failed", "server_lost", "signaled"].includes(ended) ? "fail" : "limit";
  return word((error ?? ended ?? "").replaceAll("_", " "), kind);
}
