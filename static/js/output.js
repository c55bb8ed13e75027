// Owns the output panel: verdict, clock, sentence, terminal, displays, images, connections, figures. Shows one run,
// event by event.
import { Clock } from "./clock.js";
import { Connections } from "./connections.js";
import { Displays } from "./displays.js";
import { byId, showText } from "./dom.js";
import { showImages } from "./file-view.js";
import { announce } from "./page.js";
import { store } from "./store.js";
import { Terminal } from "./terminal.js";
import { bytes, duration, visibleName } from "./text.js";
import { showVerdict, standing } from "./verdict.js";

const DISPLAYS = new Set(["display", "result", "update"]);
/** Ends of calls as connections name theirs. */
const TOOL_ENDS = { answered: "allowed", denied: "refused", refused: "refused" };
const SENTENCE_CHARS_MAX = 500;

export class Output {
  #terminal = new Terminal();
  #displays = new Displays();
  #connections = new Connections();
  #questions;
  #readFile;
  #clock = new Clock();
  #files = [];
  /** The exception that a cell ended with, as a sentence. */
  #error = "";
  /** Lines of standard error that were already shown with their colours. */
  #shownLines = 0;
  /** Whether the next output replaces what a cell has shown. */
  #clearsNext = false;
  #empty = byId("output-empty");

  /** `readFile(file)` resolves to the content of a file that a run made. */
  constructor(questions, readFile) {
    this.#questions = questions;
    this.#readFile = readFile;
    const wrap = byId("wrap");
    const show = () => {
      const wraps = store.choice("wrap") !== "no";
      wrap.setAttribute("aria-pressed", String(wraps));
      byId("output-body").classList.toggle("wrapped", wraps);
    };
    wrap.addEventListener("click", () => {
      store.choose("wrap", store.choice("wrap") === "no" ? null : "no");
      show();
    });
    show();
  }

  /** Empties the panel. */
  clear(text = "Nothing has run yet.") {
    for (const id of ["sentence", "link", "figures", "verdict"]) byId(id).hidden = true;
    this.#terminal.clear();
    this.#displays.reset();
    this.#connections.clear();
    this.#questions.clear();
    this.#files = [];
    this.#error = "";
    this.#shownLines = 0;
    this.#clearsNext = false;
    showImages([], this.#readFile);
    this.#clock.settle();
    showText(this.#empty, text);
  }

  /** Begins to show a run in the form of `/v1`; without one, a run whose request is still on its way. */
  begin(run = { state: "queued" }) {
    this.clear("Nothing printed yet.");
    this.showState(run);
    // All events of a finished run arrive at once, so the text would only flash.
    this.#empty.hidden = run.state === "finished";
    if (run.state === "running") this.#clock.start(run.wallMs);
  }

  /** Shows the state of a run that has not finished. */
  showState(run) {
    const before = byId("verdict-text").textContent;
    const text = showVerdict(standing(run));
    if (run.position && text !== before) announce(text);
  }

  event(event) {
    const { kind } = event;
    if (kind === "started") this.#started();
    else if (kind === "stdout" || kind === "stderr") this.#printed(kind, event);
    else if (DISPLAYS.has(kind)) this.#displayed(event);
    else if (kind === "clear") this.#clear(event);
    else if (kind === "input_request") this.#printed("stdout", { text: event.prompt ?? "" });
    else if (kind === "error") this.#failed(event);
    else if (kind === "cut") this.#cut();
    else if (kind === "file") this.#files.push(event.file);
    else if (kind === "network") this.#connections.add(event.network);
    else if (kind === "approval") this.#questions.add(event.approval);
    else if (kind === "tool") this.#called(event.tool);
    else if (kind === "finished") this.#finished(event);
    else if (kind === "failed") this.#broken(event);
  }

  /** A call of a tool is over: it is listed as connections are. */
  #called(call) {
    this.#questions.over(call);
    const decision = TOOL_ENDS[call.ended] ?? "failed";
    this.#connections.call({ ...call, decision });
  }

  /** Shows sent input after the program's prompt; returns a function that removes it. */
  typed(text) {
    this.#empty.hidden = true;
    return this.#terminal.typed(text);
  }

  /** Whether the program seems to wait for an answer: its last line has no newline. */
  get isPrompting() {
    return this.#terminal.isInLine;
  }

  /** `state` is `lost` or `back`. */
  link(state) {
    byId("link").hidden = state !== "lost";
    announce(state === "lost" ? "The connection is lost. Trying again." : "Connected again.");
  }

  /** Shows a failure of the server, as opposed to one of the program. */
  fail(error) {
    byId("link").hidden = true;
    this.#empty.hidden = true;
    this.#terminal.end();
    showVerdict({ ended: "error" });
    this.#clock.settle();
    const request = error.requestId ? ` (request ${error.requestId})` : "";
    const text = visibleName(error.message + request);
    showText(byId("sentence"), text);
    announce(text);
  }

  /** Scrolls to the panel where it is below the editor and out of sight; with `whole`, also when its lower end is. */
  reveal({ whole = false } = {}) {
    const card = byId("verdict").closest(".card");
    const { top, bottom } = card.getBoundingClientRect();
    if (top > innerHeight * 0.6 || (whole && top > 0 && bottom > innerHeight)) {
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      card.scrollIntoView({ block: "start", behavior: calm ? "instant" : "smooth" });
    }
  }

  #started() {
    if (this.#clock.isRunning) return;
    showVerdict({ ended: "running" });
    this.#clock.start();
  }

  #printed(kind, event) {
    const shown = kind === "stderr" && event.text !== undefined ? { text: this.#unshown(event.text) } : event;
    this.#begins();
    this.#empty.hidden = true;
    if (shown.text !== "") this.#terminal.print(kind, shown);
  }

  /** An exception: its traceback has colours here, and follows without them as standard error. */
  #failed({ name, value, traceback }) {
    this.#error = visibleName([name, value].filter(Boolean).join(": "));
    if (!traceback) return;
    const text = traceback.endsWith("\n") ? traceback : `${traceback}\n`;
    this.#printed("stderr", { text: `${text}\x1b[0m` });
    this.#shownLines = text.split("\n").length - 1;
  }

  /** What is left of a piece of standard error without the lines that were already shown. */
  #unshown(text) {
    if (this.#shownLines === 0) return text;
    const lines = text.split(/(?<=\n)/);
    const shown = lines.splice(0, this.#shownLines);
    this.#shownLines -= shown.filter((line) => line.endsWith("\n")).length;
    return lines.join("");
  }

  #cut() {
    this.#shownLines = 0;
    this.#terminal.cut();
  }

  #displayed(event) {
    this.#begins();
    this.#displays.show(event);
    this.#empty.hidden ||= !this.#displays.isEmpty;
  }

  // With `wait`, what was shown stays until something new replaces it, so that nothing flashes.
  #clear({ wait }) {
    this.#clearsNext = wait === true;
    if (!this.#clearsNext) this.#clearShown();
  }

  #begins() {
    if (this.#clearsNext) this.#clearShown();
    this.#clearsNext = false;
  }

  #clearShown() {
    this.#terminal.clear();
    this.#displays.clear();
  }

  #broken({ error }) {
    this.#questions.clear();
    this.fail(error);
  }

  #finished({ outcome, figures }) {
    this.#questions.clear();
    byId("link").hidden = true;
    this.#terminal.end({ stdout: figures.stdoutBytes, stderr: figures.stderrBytes });
    const verdict = showVerdict(outcome);
    this.#clock.settle(figures.wallMs);
    // "Exited 0" needs no sentence; every other outcome does.
    const quiet = outcome.ended === "exited" && outcome.exitCode === 0;
    const sentence = (outcome.ended === "exited" && this.#error) || visibleName(outcome.sentence ?? "");
    showText(byId("sentence"), quiet ? "" : sentence.slice(0, SENTENCE_CHARS_MAX));
    const images = showImages(
      this.#files.filter((file) => !this.#displays.holds(file)),
      this.#readFile,
    );
    const isEmpty = this.#terminal.isEmpty && this.#displays.isEmpty && !images;
    showText(this.#empty, isEmpty ? "The program printed nothing." : "");
    showText(byId("figures"), describeFigures(figures));
    announce(`${verdict}, after ${duration(figures.wallMs)}. ${visibleName(outcome.sentence ?? "")}`);
  }
}

function describeFigures({ cpuMs, memoryPeakBytes }) {
  const parts = [];
  if (Number.isFinite(cpuMs)) parts.push(`${duration(cpuMs)} of CPU`);
  if (Number.isFinite(memoryPeakBytes)) parts.push(`${bytes(memoryPeakBytes)} of memory at peak`);
  return parts.join(" · ");
}
