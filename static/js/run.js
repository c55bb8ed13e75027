// Owns the runs of the open conversation on their way through this page: asked for, watched, stopped, picked up after a
// reload, shown again. At most one is *live*, and the page is `running` while there is one. A run belongs to the server:
// leaving the page or the conversation leaves it running.
import { follow } from "./follow.js";
import { announce, page, toast } from "./page.js";
import { store } from "./store.js";
import { visibleName } from "./text.js";
import { Typed } from "./typed.js";

const PLACE_ASKED_EVERY_MS = 1000;
const END_WAIT_S = 5;

export class Run {
  #client;
  #output;
  #history;
  #input;
  #request;
  #onShow;
  #onEnd;
  #onFailure;
  /** A run that is watched: `{ run, wanted, abort, started, files, typed }`. What is shown is live, or from the past. */
  #live = null;
  #shown = null;
  #stopAsked = false;
  /** What was typed to the runs of this conversation. */
  #typed = new Map();
  /** Runs whose end was told here: a list that was on its way may still call them running. */
  #over = new Set();
  /** Counts openings and listings: an answer to an older question is dropped. */
  #opened = 0;
  #listed = 0;

  /** `request()` says what to run; `onShow(runId)` is told which run is seen, `onEnd(files)` and `onFailure(error)` how it went. */
  constructor({ client, output, history, input, request, onShow, onEnd, onFailure }) {
    this.#client = client;
    this.#output = output;
    this.#history = history;
    this.#input = input;
    this.#request = request;
    this.#onShow = onShow;
    this.#onEnd = onEnd;
    this.#onFailure = onFailure;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && (page.state === "ready" || page.state === "running")) this.refresh();
    });
  }

  async start() {
    if (page.state !== "ready") return;
    const opened = this.#opened;
    page.state = "running";
    announce("Running");
    this.#leave();
    this.#output.begin();
    this.#output.reveal();
    try {
      const request = this.#request();
      const run = await this.#client.create(request);
      store.remember(run.runId, request);
      // Another conversation is open by now: the run goes on without the page.
      if (opened !== this.#opened) return;
      this.#watch(run, { live: true, wanted: true });
      if (this.#stopAsked) this.stop();
      await this.refresh();
    } catch (error) {
      if (opened === this.#opened) {
        this.#output.fail(error);
        this.#rest();
      }
      this.#onFailure(error);
    }
  }

  async stop() {
    if (page.state !== "running") return;
    this.#stopAsked = true;
    announce("Stopping");
    if (!this.#live) return;
    try {
      await this.#client.cancel(this.#live.run.runId);
    } catch (error) {
      toast(`The run could not be stopped: ${visibleName(error.message)}`);
      this.#onFailure(error);
    }
  }

  /** Something is typed to a run; returns how to take it back. */
  typed(runId, text) {
    const watch = this.#shown;
    return watch?.run.runId === runId ? watch.typed.add(text, this.#output) : () => {};
  }

  /** A conversation is opened: what goes on in it is picked up, and else its newest run is shown. */
  async open() {
    this.#opened += 1;
    this.#leave();
    this.#live?.abort.abort();
    this.#live = null;
    this.#typed.clear();
    this.#rest();
    this.#history.show([]);
    this.#output.clear();
    await this.refresh();
  }

  /** Asks the server again which runs there are. */
  async refresh() {
    const opened = this.#opened;
    const listed = ++this.#listed;
    try {
      const runs = await this.#client.list(this.#request().conversationId);
      if (opened !== this.#opened || listed !== this.#listed) return;
      this.#history.show(runs);
      // The list may be older than what the events told meanwhile.
      if (this.#live?.started) this.#history.update(this.#live.run.runId, "running");
      const going = runs.find((run) => run.state !== "finished" && !this.#over.has(run.runId));
      if (going && page.state === "ready") this.#watch(going, { live: true });
      else if (runs.length && page.state === "ready" && !this.#shown) this.#watch(runs[0], { live: false });
    } catch (error) {
      this.#onFailure(error);
    }
  }

  /** Shows a run from the list. */
  async choose({ runId }) {
    if (this.#shown?.run.runId === runId) return;
    const opened = this.#opened;
    try {
      const run = await this.#client.get(runId);
      if (opened !== this.#opened) return;
      const live = this.#live?.run.runId === runId;
      if (live) this.#live.abort.abort();
      this.#watch(run, { live, wanted: true });
      this.#output.reveal();
    } catch (error) {
      toast(visibleName(error.message));
      this.#onFailure(error);
      this.refresh();
    }
  }

  // From its first event on, whatever is known of it already. One that is `wanted` was asked for here.
  #watch(run, { live, wanted = false }) {
    this.#leave();
    const typed = this.#typed.get(run.runId) ?? new Typed();
    this.#typed.set(run.runId, typed);
    typed.rewind();
    const watch = { run, wanted, abort: new AbortController(), started: run.state !== "queued", files: [], typed };
    this.#shown = watch;
    if (live) {
      this.#live = watch;
      page.state = "running";
    }
    this.#history.choose(run.runId);
    this.#onShow(run.runId);
    this.#output.begin(run);
    this.#follow(watch);
    this.#askPlace(watch);
  }

  // A live run is watched on while another is shown.
  #leave() {
    if (this.#shown !== this.#live) this.#shown?.abort.abort();
    this.#shown = null;
    this.#input.close();
    this.#history.choose(null);
    this.#onShow(null);
  }

  async #follow(watch) {
    const { abort: { signal }, run: { runId } } = watch;
    const shown = (tell) => this.#shown === watch && tell(this.#output);
    try {
      await follow({
        client: this.#client,
        runId,
        signal,
        onEvent: (event) => {
          watch.started ||= event.kind !== "queued";
          if (event.kind === "started" && this.#live === watch) this.#begun(watch);
          if (event.kind === "file") watch.files.push(event.file);
          shown((output) => watch.typed.tell(event, output));
        },
        onLost: () => shown((output) => output.link("lost")),
        onBack: () => shown((output) => output.link("back")),
      });
      this.#over.add(runId);
    } catch (error) {
      if (signal.aborted) return;
      watch.started = true;
      shown((output) => output.fail(error));
      this.#onFailure(error);
    }
    if (this.#live === watch) await this.#ended(watch);
  }

  #begun(watch) {
    const { run: { runId, stdinOpen }, wanted } = watch;
    this.#history.update(runId, "running");
    if (stdinOpen && this.#shown === watch) this.#input.open(runId, () => wanted && this.#output.reveal({ whole: true }));
  }

  async #ended(watch) {
    const { run: { runId }, files } = watch;
    this.#live = null;
    if (this.#shown === watch) this.#input.close();
    this.#rest();
    this.#onEnd(files);
    // The last event may come a moment before the run is filed as finished.
    await this.#client.get(runId, { waitS: END_WAIT_S }).catch(() => {});
    await this.refresh();
  }

  // Its place in the line is no event: it changes with what others do.
  async #askPlace(watch) {
    while (!watch.started && !watch.abort.signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, PLACE_ASKED_EVERY_MS));
      const run = await this.#client.get(watch.run.runId).catch(() => null);
      if (run?.state === "queued" && !watch.started && this.#shown === watch) this.#output.stand(run);
    }
  }

  // Something else may have found out meanwhile that the token is no longer good.
  #rest() {
    this.#stopAsked = false;
    if (page.state === "running") page.state = "ready";
  }
}
