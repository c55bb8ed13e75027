// Owns the first view: what goes on now, refreshed while it is seen, and the charts of the last hour or day.
import { byId, el } from "../dom.js";
import { bytes, duration, visibleName } from "../text.js";
import { chart } from "./charts.js";
import { Table, act, moment, name, word } from "./table.js";

const ENDS = [
  ["exited", ["exited"]],
  ["reached a limit", ["timed_out", "out_of_memory", "output_limit", "disk_limit", "process_limit"]],
  ["was signalled", ["signaled"]],
  ["the server failed", ["failed", "server_lost"]],
  ["cancelled", ["cancelled"]],
];
/** Codes that have a colour of their own; the others share one. */
const CODES_MAX = 4;

export class Overview {
  #api;
  #span = "hour";
  #runs;
  #sessions;
  #queue;
  #standbys;

  constructor(api) {
    this.#api = api;
    for (const span of ["hour", "day"]) byId(`span-${span}`).addEventListener("click", () => this.#choose(span));
    const where = [
      { name: "Owner", cell: (row) => name(row.owner), kind: "name" },
      { name: "Conversation", cell: (row) => name(row.conversationId), kind: "name" },
      { name: "Language", cell: (row) => name(row.language) },
    ];
    this.#runs = new Table({
      id: "live-runs",
      title: "Runs",
      empty: "No programs are running or waiting.",
      columns: [
        ...where,
        { name: "State", cell: stateOf },
        { name: "Since", cell: (run) => moment(run.createdAt) },
        { name: "Ran", cell: (run) => duration(run.wallMs), kind: "number" },
        { name: "Cancel", cell: (run) => this.#cancel(run), kind: "act" },
      ],
    });
    this.#sessions = new Table({
      id: "live-sessions",
      title: "Sessions",
      empty: "No sessions are open.",
      columns: [
        ...where,
        { name: "State", cell: ({ state }) => word(state, state === "busy" ? "run" : "plain") },
        { name: "Since", cell: (session) => moment(session.createdAt) },
        { name: "Unused", cell: (session) => duration(session.idleMs), kind: "number" },
        { name: "Cells", cell: (session) => session.cells, kind: "number" },
        { name: "Memory limit", cell: (session) => bytes(session.memoryBytesMax), kind: "number" },
        { name: "End", cell: (session) => this.#end(session), kind: "act" },
      ],
    });
    this.#queue = new Table({
      id: "queue",
      title: "Queue by owner",
      empty: "No owner has running or waiting programs.",
      columns: [
        { name: "Owner", cell: (row) => name(row.owner), kind: "name" },
        { name: "Running", cell: (row) => row.running, kind: "number" },
        { name: "Waiting", cell: (row) => row.waiting, kind: "number" },
      ],
    });
    this.#standbys = new Table({
      id: "standbys",
      title: "Standbys",
      empty: "There are no standbys.",
      columns: [
        { name: "Language", cell: (row) => name(row.language) },
        { name: "Stage", cell: (row) => row.stage },
        { name: "Sandboxes", cell: (row) => row.count, kind: "number" },
      ],
    });
    const tables = [this.#runs, this.#sessions, this.#queue, this.#standbys];
    byId("live-tables").append(...tables.map(({ element }) => element));
  }

  async load() {
    const [now] = await Promise.all([this.#api.get("v1/admin/overview"), this.#charts()]);
    const tiles = [
      ["Programs running", `${now.slotsTaken} of ${now.slots}`],
      ["Waiting", now.waiting],
      ["Sessions", now.sessionsTotal],
      ["Sandboxes", now.sandboxes],
      ["Standbys", now.standbys.reduce((sum, { count }) => sum + count, 0)],
    ];
    byId("tiles").replaceChildren(
      ...tiles.map(([title, value]) =>
        el(
          "div",
          { class: "card tile" },
          el("span", { class: "tile-value" }, String(value)),
          el("span", { class: "tile-name" }, title),
        ),
      ),
    );
    this.#runs.show(now.runs, { total: now.runsTotal });
    this.#sessions.show(now.sessions, { total: now.sessionsTotal });
    this.#queue.show(now.queue);
    this.#standbys.show(now.standbys);
  }

  async #choose(span) {
    this.#span = span;
    for (const other of ["hour", "day"]) byId(`span-${other}`).setAttribute("aria-pressed", String(other === span));
    await this.#api.run(() => this.#charts(), "load");
  }

  async #charts() {
    const span = this.#span;
    const { parts, hasHistory } = await this.#api.get(`v1/admin/activity?span=${span}`);
    if (span !== this.#span) return;
    byId("no-history").hidden = hasHistory;
    const time = ({ begin }) => new Date(begin).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    const countOf = (list, words) =>
      list.filter(({ word }) => words.includes(word)).reduce((sum, { count }) => sum + count, 0);
    const sums = new Map();
    for (const { refusals } of parts) {
      for (const { word, count } of refusals) sums.set(word, (sums.get(word) ?? 0) + count);
    }
    const codes = [...sums.keys()].sort((one, other) => sums.get(other) - sums.get(one));
    const series = codes.slice(0, CODES_MAX).map((code) => [code, [code]]);
    if (codes.length > CODES_MAX) series.push(["other codes", codes.slice(CODES_MAX)]);
    const figures = [
      {
        id: "chart-runs",
        title: "Runs by how they ended",
        kind: "bars",
        series: ENDS.map(([label]) => label),
        rows: parts.map((part) => ({ time: time(part), values: ENDS.map(([, words]) => countOf(part.runs, words)) })),
        empty: hasHistory ? "No runs ended in this period." : "The database does not answer: check that it runs.",
      },
      {
        id: "chart-took",
        title: "How long runs took, waiting included",
        kind: "lines",
        series: ["half of them", "90 %", "99 %"],
        rows: parts.map((part) => ({
          time: time(part),
          values: [part.took?.p50Ms ?? null, part.took?.p90Ms ?? null, part.took?.p99Ms ?? null],
        })),
        format: duration,
        empty: hasHistory ? "No runs ended in this period." : "The database does not answer: check that it runs.",
      },
      {
        id: "chart-refusals",
        title: "Refused requests for runs",
        kind: "bars",
        series: series.map(([label]) => label),
        rows: parts.map((part) => ({
          time: time(part),
          values: series.map(([, words]) => countOf(part.refusals, words)),
        })),
        empty: "No requests were refused.",
      },
    ];
    const box = byId("charts");
    const known = (id) => box.querySelector(`[data-testid="${id}"]`);
    // A chart whose figures are read is left as it is until they are closed.
    const isRead = (id) => known(id)?.querySelector("details[open]") || known(id)?.contains(document.activeElement);
    const isSame = box.dataset.span === span;
    box.dataset.span = span;
    box.replaceChildren(...figures.map((one) => (isSame && isRead(one.id) ? known(one.id) : chart(one))));
  }

  #cancel(run) {
    const text = `${visibleName(run.owner)} / ${visibleName(run.conversationId)}`;
    const question = { title: "Cancel this run?", text, yes: "Cancel the run" };
    const cancel = () => this.#api.post(`v1/admin/runs/${run.runId}/cancel`);
    const onClick = () => this.#api.confirmed(this, question, cancel, "The run is being cancelled.");
    const of = `the run of ${visibleName(run.owner)}`;
    return act({ key: run.runId, label: "Cancel", of, symbol: "stop", onClick });
  }

  #end(session) {
    const text = `${visibleName(session.owner)} / ${visibleName(session.conversationId)}\nIts variables are lost.`;
    const question = { title: "End this session?", text, yes: "End the session" };
    const end = () => this.#api.remove(`v1/admin/sessions/${session.sessionId}`);
    const onClick = () => this.#api.confirmed(this, question, end, "The session has ended.");
    const of = `the session of ${visibleName(session.owner)}`;
    return act({ key: session.sessionId, label: "End", of, symbol: "close", onClick });
  }
}

function stateOf({ state, position, cell }) {
  const what = state === "queued" && position ? `waits, ${position}. in line` : state;
  return el("span", {}, word(what, state === "running" ? "run" : "limit"), cell ? " cell" : "");
}
