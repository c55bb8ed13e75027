// Owns the runs of the open conversation: starts, follows, stops and shows them, and follows a running one again after
// a reload. At most one is *live*, and the page is `running` while there is one. Runs are detached: closing the page or
// changing the conversation does not stop them, and those that go on elsewhere are handed to `Elsewhere`.
import { follow } from "./follow.js";
import { announce, page, toast } from "./page.js";
import { store } from "./store.js";
import { visibleName } from "./text.js";
import { TypedLines } from "./typed-lines.js";

const PLACE_INTERVAL_MS = 1000;
const LIST_INTERVAL_MS = 3000;
// How long a prompt stands before it gets the focus.
const PROMPT_MS = 200;
const END_WAIT_S = 5;

export class Run {
  #client;
  #output;
  #history;
  #input;
  #elsewhere;
  #conversation;
  #request;
  #begin;
  #onShow;
  #onEnd;
  #onOther;
  #onFailure;
  /**
   * Two watches `{ run, wanted, abort, started, files, typed, prompted, asks, opens, isOver, isLost }`: the live run,
   * and the one shown. `asks`: a cell's request for input that is not answered; `opens`: the same, until its line is
   * opened; `isOver`: it is no longer followed; `isLost`: the end is not known.
   */
  #live = null;
  #shown = null;
  /** Whether a run that could not be started is shown. */
  #isRefused = false;
  /** `{stopped}` of the run that the server is being asked to start, or null. */
  #starting = null;
  /** Number of the newest choice or start: answers to older choices are dropped. */
  #chosen = 0;
  /** The TypedLines of each run of this conversation, by run id. */
  #typed = new Map();
  /** Runs whose last event was received: a list requested earlier may still show them as running. */
  #over = new Set();
  /** The finished runs of the newest listing. */
  #finished = null;
  /** Number of the newest open: answers to older requests are dropped. */
  #opened = 0;
  /** Numbers of the newest listing, and of the newest that was answered: answers to older ones are dropped. */
  #listed = 0;
  #answered = 0;
  #promptTimer = 0;

  /**
   * `request()` returns what to run, or null; `begin(request)` resolves to the run that was made of it.
   * `onShow(program)` gets that of the run on display, or null; `onEnd(files)` those of a finished run; `onOther()` is
   * called when a run ended that this page did not follow.
   */
  constructor({ client, output, history, input, elsewhere, conversation, request, begin, ...callbacks }) {
    const { onShow, onEnd, onOther, onFailure } = callbacks;
    this.#client = client;
    this.#output = output;
    this.#history = history;
    this.#input = input;
    this.#elsewhere = elsewhere;
    this.#conversation = conversation;
    this.#request = request;
    this.#begin = begin;
    this.#onShow = onShow;
    this.#onEnd = onEnd;
    this.#onOther = onOther;
    this.#onFailure = onFailure;
    const look = () => {
      if (!document.hidden && (page.state === "ready" || page.state === "running")) this.refresh();
    };
    document.addEventListener("visibilitychange", look);
    setInterval(look, LIST_INTERVAL_MS);
  }

  async start() {
    if (page.state !== "ready") return;
    const request = this.#request();
    if (!request) return;
    const opened = this.#opened;
    const starting = { stopped: false };
    this.#starting = starting;
    this.#chosen += 1;
    page.state = "running";
    announce("Running");
    this.#leave();
    this.#output.begin();
    this.#output.reveal();
    try {
      const run = await this.#begin(request);
      store.remember(run.runId, request);
      // Another conversation was opened meanwhile: the run continues there.
      if (opened !== this.#opened) {
        this.#elsewhere.add(run);
        if (starting.stopped) await this.#client.cancelRun(run.runId);
        return;
      }
      this.#watch(run, { live: true, wanted: true });
      if (starting.stopped) this.stop();
      await this.refresh();
    } catch (error) {
      // Meanwhile another conversation may have been opened, or another run chosen.
      const isHere = opened === this.#opened;
      if (isHere && !this.#shown) {
        this.#isRefused = true;
        this.#output.fail(error);
      } else toast(`${visibleName(request.conversationId)}: ${visibleName(error.message)}`);
      if (isHere && !this.#live) this.#setReady();
      this.#onFailure(error);
    } finally {
      if (this.#starting === starting) this.#starting = null;
    }
  }

  async stop() {
    if (page.state !== "running") return;
    if (this.#starting) this.#starting.stopped = true;
    announce("Stopping");
    if (!this.#live) return;
    try {
      await this.#client.cancelRun(this.#live.run.runId);
    } catch (error) {
      toast(`The run could not be stopped: ${visibleName(error.message)}`);
      this.#onFailure(error);
    }
  }

  /** Shows input sent to a run; returns how to keep and to remove it, where the run is shown. */
  typed(runId, text) {
    const watch = this.#shown;
    return watch?.run.runId === runId ? watch.typed.add(text, this.#output) : null;
  }

  /** Opens a conversation: follows its running run, or else shows its newest one. */
  async open(conversationId) {
    this.#opened += 1;
    this.#leave();
    this.#live?.abort.abort();
    if (this.#live) this.#elsewhere.add(this.#live.run);
    this.#elsewhere.open(conversationId);
    this.#live = null;
    this.#typed.clear();
    this.#finished = null;
    this.#starting = null;
    this.#setReady();
    this.#history.show([]);
    this.#output.clear();
    await this.refresh({ follows: true });
  }

  /** Reloads the list of runs. `follows`: shows one that runs, or the newest one. */
  async refresh({ follows = false } = {}) {
    const opened = this.#opened;
    const listed = ++this.#listed;
    try {
      const runs = await this.#client.listRuns(this.#conversation());
      // Not only the newest one: where answers take longer than the interval, none ever is.
      if (opened !== this.#opened || listed < this.#answered) return;
      this.#answered = listed;
      this.#history.show(runs);
      // The list may be older than the events received meanwhile.
      if (this.#live?.started) this.#history.update(this.#live.run.runId, "running");
      this.#notice(runs);
      if (page.state !== "ready") return;
      const shown = runs.find(({ runId }) => runId === this.#shown?.run.runId);
      const live = shown && shown.state !== "finished";
      // One whose connection was lost, or that was shown while the live one went on.
      if (shown && (this.#shown.isLost || (live && !this.#shown.isOver)))
        return this.#watch(shown, { live, wanted: this.#shown.wanted });
      if (!follows && this.#shown) return;
      const going = runs.find((run) => run.state !== "finished" && !this.#over.has(run.runId));
      if (going) this.#watch(going, { live: true });
      else if (runs.length && !this.#shown && !this.#isRefused) this.#watch(runs[0], { live: false });
    } catch (error) {
      this.#onFailure(error);
    }
  }

  /** Shows a run from the list. */
  async choose({ runId }) {
    const opened = this.#opened;
    const chosen = ++this.#chosen;
    if (this.#shown?.run.runId === runId) return;
    try {
      const run = await this.#client.getRun(runId);
      if (opened !== this.#opened || chosen !== this.#chosen) return;
      const live = this.#live ? this.#live.run.runId === runId : run.state !== "finished";
      this.#watch(run, { live, wanted: true });
      this.#output.reveal();
    } catch (error) {
      toast(visibleName(error.message));
      this.#onFailure(error);
      this.refresh();
    }
  }

  // Notices runs that ended and were not followed here, such as an assistant's.
  #notice(runs) {
    const finished = runs.filter(({ state }) => state === "finished").map(({ runId }) => runId);
    const before = this.#finished;
    this.#finished = new Set(finished);
    if (before && finished.some((runId) => !before.has(runId) && !this.#over.has(runId))) this.#onOther();
  }

  // Shows a run from its first event on. `wanted`: the user started or chose it on this page.
  #watch(run, { live, wanted = false }) {
    this.#leave();
    const typed = this.#typed.get(run.runId) ?? new TypedLines(run.runId);
    this.#typed.set(run.runId, typed);
    typed.rewind();
    const watch = { run, wanted, abort: new AbortController(), started: run.state !== "queued", files: [], typed };
    this.#shown = watch;
    if (live) {
      this.#live?.abort.abort();
      this.#live = watch;
      page.state = "running";
    }
    this.#history.choose(run.runId);
    this.#output.begin(run);
    this.#follow(watch);
    this.#pollPlace(watch);
    this.#offerProgram(watch);
  }

  // The source of a run that this tab started is kept here; that of any other one is on the server.
  async #offerProgram(watch) {
    const { run } = watch;
    const kept = store.programOf(run.runId) ?? programIn(run);
    if (kept) return this.#onShow(kept);
    const known = await this.#client.getRun(run.runId).catch(() => null);
    if (this.#shown === watch) this.#onShow(known && programIn(known));
  }

  // A live run is followed further while another one is shown.
  #leave() {
    clearTimeout(this.#promptTimer);
    if (this.#shown !== this.#live) this.#shown?.abort.abort();
    this.#shown = null;
    this.#isRefused = false;
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
          if (this.#live !== watch) return;
          this.#ask(watch, event);
          this.#awaitPrompt(watch);
        },
        onLost: () => whenShown((output) => output.link("lost")),
        onBack: () => whenShown((output) => output.link("back")),
      });
      this.#over.add(runId);
    } catch (error) {
      if (signal.aborted) return;
      watch.started = true;
      watch.isLost = error.code === "lost";
      whenShown((output) => output.fail(error));
      this.#onFailure(error);
    }
    watch.isOver = true;
    if (this.#live === watch) await this.#ended(watch);
  }

  #started(watch) {
    const {
      run: { runId, stdinOpen, cell },
    } = watch;
    this.#history.update(runId, "running");
    // A cell says when it waits for input.
    if (stdinOpen && !cell) this.#openInput(watch);
  }

  // Any client may answer a cell's request. A run that is shown again begins with requests that were answered before.
  #ask(watch, event) {
    if (event.kind === "input_request") watch.asks = watch.opens = event;
    if (event.kind === "input_answered") {
      watch.asks = watch.opens = null;
      if (this.#shown === watch) this.#input.answered();
    }
    if (!watch.opens || event.number < watch.run.newestEvent) return;
    if (watch.run.stdinOpen) this.#openInput(watch, watch.opens);
    watch.opens = null;
  }

  #openInput(watch, request) {
    if (this.#shown !== watch) return;
    const onShow = () => {
      if (watch.wanted) this.#output.reveal({ whole: true });
      this.#awaitPrompt(watch);
    };
    this.#input.open(watch.run.runId, onShow, request);
  }

  // The first prompt of a run that the user started gets the focus.
  #awaitPrompt(watch) {
    clearTimeout(this.#promptTimer);
    if (!watch.wanted || watch.prompted) return;
    this.#promptTimer = setTimeout(() => {
      const prompts = watch.asks || this.#output.isPrompting;
      if (this.#shown === watch && this.#live === watch && prompts)
        watch.prompted = this.#input.focus();
    }, PROMPT_MS);
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
    if (page.state === "running") page.state = "ready";
  }
}

// The program in the answer about a run, where the server keeps all of it.
function programIn({ language, source, sourceTruncated }) {
  return typeof source === "string" && !sourceTruncated ? { language, code: source } : null;
}
