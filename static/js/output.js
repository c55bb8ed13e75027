// Owns the output panel: verdict, clock, sentence, both streams, images, figures. Shows one run, event by event.
import { Clock } from "./clock.js";
import { byId, showText } from "./dom.js";
import { showImages } from "./file-view.js";
import { announce } from "./page.js";
import { store } from "./store.js";
import { Stream } from "./stream.js";
import { bytes, duration, visibleName } from "./text.js";
import { showVerdict, standing } from "./verdict.js";

export class Output {
  #streams = { stdout: new Stream("stdout"), stderr: new Stream("stderr") };
  #clock = new Clock();
  #files = [];
  #empty = byId("output-empty");

  constructor() {
    const wrap = byId("wrap");
    const show = () => {
      wrap.setAttribute("aria-pressed", String(store.wrap));
      byId("output-body").classList.toggle("wrapped", store.wrap);
    };
    wrap.addEventListener("click", () => {
      store.wrap = !store.wrap;
      show();
    });
    show();
  }

  /** Empties the panel. */
  clear(text = "Nothing has run yet.") {
    for (const id of ["sentence", "link", "figures", "verdict"]) byId(id).hidden = true;
    for (const stream of Object.values(this.#streams)) stream.clear();
    this.#files = [];
    showImages([]);
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
    else if (kind === "cut") this.#cut(event);
    else if (kind === "file") this.#files.push(event.file);
    else if (kind === "finished") this.#finished(event);
    else if (kind === "failed") this.fail(event.error);
  }

  /** Shows sent input after the program's prompt, on the stream that has it; returns a function that removes it. */
  typed(text) {
    this.#empty.hidden = true;
    const { stdout, stderr } = this.#streams;
    return (stderr.isInLine && !stdout.isInLine ? stderr : stdout).typed(text);
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
    for (const stream of Object.values(this.#streams)) stream.end();
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
    this.#empty.hidden = true;
    this.#streams[kind].print(event);
  }

  #cut({ stdoutBytes, stderrBytes }) {
    if (stdoutBytes) this.#streams.stdout.cut();
    if (stderrBytes) this.#streams.stderr.cut();
  }

  #finished({ outcome, figures }) {
    byId("link").hidden = true;
    const { stdout, stderr } = this.#streams;
    stdout.end(figures.stdoutBytes);
    stderr.end(figures.stderrBytes);
    const verdict = showVerdict(outcome);
    this.#clock.settle(figures.wallMs);
    // "Exited 0" needs no sentence; every other outcome does.
    const quiet = outcome.ended === "exited" && outcome.exitCode === 0;
    showText(byId("sentence"), quiet ? "" : visibleName(outcome.sentence ?? ""));
    const images = showImages(this.#files);
    showText(this.#empty, stdout.isEmpty && stderr.isEmpty && !images ? "The program printed nothing." : "");
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
