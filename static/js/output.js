// Owns the output panel: verdict, clock, sentence, both streams, images, figures. It is told of one run, event by event.
import { Clock } from "./clock.js";
import { byId, showText } from "./dom.js";
import { showImages } from "./images.js";
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

  /** Nothing is shown. */
  clear(text = "Nothing has run yet.") {
    for (const id of ["sentence", "link", "figures", "verdict"]) byId(id).hidden = true;
    for (const stream of Object.values(this.#streams)) stream.clear();
    this.#files = [];
    showImages([]);
    this.#clock.settle();
    showText(this.#empty, text);
  }

  /** A run is shown from its beginning, as `/v1` tells of it, or one that was only just asked for. */
  begin(run = { state: "queued" }) {
    this.clear("Nothing printed yet.");
    this.stand(run);
    // One that is over is told to its end at once: what it says of an empty beginning is seen by nobody.
    this.#empty.hidden = run.state === "finished";
    if (run.state === "running") this.#clock.start(run.wallMs);
  }

  /** Where a run that has not ended is on its way. */
  stand(run) {
    const before = byId("verdict-text").textContent;
    const text = showVerdict(standing(run));
    if (run.position && text !== before) announce(text);
  }

  /** What happened to the run. */
  event(event) {
    const { kind } = event;
    if (kind === "started") this.#started();
    else if (kind === "stdout" || kind === "stderr") this.#printed(kind, event);
    else if (kind === "cut") this.#cut(event);
    else if (kind === "file") this.#files.push(event.file);
    else if (kind === "finished") this.#finished(event);
    else if (kind === "failed") this.fail(event.error);
  }

  /** What was typed to the program stands after its question, on either stream; returns how to take it back. */
  typed(text) {
    this.#empty.hidden = true;
    const { stdout, stderr } = this.#streams;
    return (stderr.isInLine && !stdout.isInLine ? stderr : stdout).typed(text);
  }

  /** The connection is lost, or is back. */
  link(state) {
    byId("link").hidden = state !== "lost";
    announce(state === "lost" ? "The connection is lost. Trying again." : "Connected again.");
  }

  /** The server, not the program, failed. */
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

  /** In one column the output is below the editor, out of sight; `whole` says that its lower end is wanted too. */
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

  #printed(kind, what) {
    this.#empty.hidden = true;
    this.#streams[kind].print(what);
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
    // "Exited 0" needs no sentence; every other end does.
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
  if (Number.isFinite(memoryPeakBytes)) parts.push(`${bytes(memoryPeakBytes)} of memory at the most`);
  return parts.join(" · ");
}
