// Owns the runs of the open conversation: starts, follows, stops and shows them, and follows a running one again after
// a reload. At most one is *live*, and the page is `running` while there is one. Runs are detached: closing the page or
// changing the conversation does not stop them.
import { follow } from "./follow.js";
import { announce, page, toast } from "./page.js";
import { store } from "./store.js";
import { visibleName } from "./text.js";
import { TypedLines } from "./typed-lines.js";

const PLACE_INTERVAL_MS = 1000;
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
  /**
   * Two watches `{ run, wanted, abort, started, files, typed }`: the live run, and the one shown (live or finished).
   */
  #live = null;
  #shown = null;
  #stopRequested = false;
  /** The TypedLines of each run of this conversation, by run id. */
  #typed = new Map();
  /** Runs whose last event was received: a list requested earlier may still show them as running. */
  #over = new Set();
  /** Number of the newest open and of the newest listing: answers to older requests are dropped. */
  #opened = 0;
  #listed = 0;

  /**
   * `request()` returns what to run. `onShow(runId)` gets the run on display, or null; `onEnd(files)` those of a
   * finished run.
   */
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
      const run = await this.#client.createRun(request);
      store.remember(run.runId, request);
      // Another conversation was opened meanwhile: the run continues, and this page does not follow it.
      if (opened !== this.#opened) return;
      this.#watch(run, { live: true, wanted: true });
      if (this.#stopRequested) this.stop();
      await this.refresh();
    } catch (error) {
      if (opened === this.#opened) {
        this.#output.fail(error);
        this.#setReady();
      }
      this.#onFailure(error);
    }
  }

  async stop() {
    if (page.state !== "running") return;
    this.#stopRequested = true;
    announce("Stopping");
    if (!this.#live) return;
    try {
      await this.#client.cancelRun(this.#live.run.runId);
    } catch (error) {
      toast(`The run could not be stopped: ${visibleName(error.message)}`);
      this.#onFailure(error);
    }
  }

  /** Shows input sent to a run; returns a function that removes it. */
  typed(runId, text) {
    const watch = this.#shown;
    return watch?.run.runId === runId ? watch.typed.add(text, this.#output) : () => {};
  }

  /** Opens a conversation: follows its running run, or else shows its newest one. */
  async open() {
    this.#opened += 1;
    this.#leave();
    this.#live?.abort.abort();
    this.#live = null;
    this.#typed.clear();
    this.#setReady();
    this.#history.show([]);
    this.#output.clear();
    await this.refresh();
  }

  /** Reloads the list of runs. */
  async refresh() {
    const opened = this.#opened;
    const listed = ++this.#listed;
    try {
      const runs = await this.#client.listRuns(this.#request().conversationId);
      if (opened !== this.#opened || listed !== this.#listed) return;
      this.#history.show(runs);
      // The list may be older than the events received meanwhile.
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
      const run = await this.#client.getRun(runId);
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

  // Shows a run from its first event on. `wanted`: the user started or chose it on this page.
  #watch(run, { live, wanted = false }) {
    this.#leave();
    const typed = this.#typed.get(run.runId) ?? new TypedLines();
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
    this.#pollPlace(watch);
  }

  // A live run is followed further while another one is shown.
  #leave() {
    if (this.#shown !== this.#live) this.#shown?.abort.abort();
    this.#shown = null;
    this.#input.close();
    this.#history.choose(null);
    this.#onShow(null);
  }

  async #follow(watch) {
    const {
      abort: { signal },
      run: { runId },
    } = watch;
    const whenShown = (act) => this.#shown === watch && act(this.#output);
    try {
      await follow({
        client: this.#client,
        runId,
        signal,
        onEvent: (event) => {
          watch.started ||= event.kind !== "queued";
          if (event.kind === "started" && this.#live === watch) this.#started(watch);
          if (event.kind === "file") watch.files.push(event.file);
          whenShown((output) => watch.typed.event(event, output));
        },
        onLost: () => whenShown((output) => output.link("lost")),
        onBack: () => whenShown((output) => output.link("back")),
      });
      this.#over.add(runId);
    } catch (error) {
      if (signal.aborted) return;
      watch.started = true;
      whenShown((output) => output.fail(error));
      this.#onFailure(error);
    }
    if (this.#live === watch) await this.#ended(watch);
  }

  #started(watch) {
    const {
      run: { runId, stdinOpen },
      wanted,
    } = watch;
    this.#history.update(runId, "running");
    if (stdinOpen && this.#shown === watch)
      this.#input.open(runId, () => wanted && this.#output.reveal({ whole: true }));
  }

  async #ended(watch) {
    const {
      run: { runId },
      files,
    } = watch;
    this.#live = null;
    if (this.#shown === watch) this.#input.close();
    this.#setReady();
    this.#onEnd(files);
    // The last event may arrive shortly before the run is listed as finished.
    await this.#client.getRun(runId, { waitS: END_WAIT_S }).catch(() => {});
    await this.refresh();
  }

  // Not every change of the place in the queue is an event.
  async #pollPlace(watch) {
    while (!watch.started && !watch.abort.signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, PLACE_INTERVAL_MS));
      const run = await this.#client.getRun(watch.run.runId).catch(() => null);
      if (run?.state === "queued" && !watch.started && this.#shown === watch) this.#output.showState(run);
    }
  }

  // Leaves `needs-token` and `error` as they are.
  #setReady() {
    this.#stopRequested = false;
    if (page.state === "running") page.state = "ready";
  }
}
