// Owns uploads: by the button, and by dropping files anywhere on the page. One file at a time, each with its own line
// that shows how far it is; a failed one does not stop the rest.
import { byId, el, icon } from "./dom.js";
import { mayReplace } from "./files.js";
import { announce, page } from "./page.js";
import { bytes, plural, visibleName } from "./text.js";

export class Uploads {
  #client;
  #conversation;
  #exists;
  #onDone;
  #onFailure;
  #queue = [];
  #busy = false;

  /** `exists(name)` says whether the conversation has such a file. */
  constructor({ client, conversation, exists, onDone, onFailure }) {
    this.#client = client;
    this.#conversation = conversation;
    this.#exists = exists;
    this.#onDone = onDone;
    this.#onFailure = onFailure;
    const input = byId("upload-input");
    input.addEventListener("change", () => {
      this.add([...input.files]);
      input.value = "";
    });
    page.onState((state) => {
      input.disabled = state === "needs-token" || state === "error" || state === "loading";
    });
    this.#listenForDrops();
  }

  /** Whether a file is being sent. */
  get isBusy() {
    return this.#busy;
  }

  add(files, conversationId = this.#conversation()) {
    if (byId("upload-input").disabled || !files.length) return;
    if (!this.#busy) byId("uploads").replaceChildren();
    byId("uploads").hidden = false;
    for (const file of files) {
      const line = uploadLine(file);
      byId("uploads").append(line);
      this.#queue.push({ file, line, conversationId });
    }
    if (!this.#busy) this.#drain();
  }

  async #drain() {
    this.#busy = true;
    let sent = 0;
    let failed = 0;
    announce(`Uploading ${plural(this.#queue.length, "file")}.`);
    while (this.#queue.length) {
      const { file, line, conversationId } = this.#queue.shift();
      try {
        if (await this.#send(conversationId, file, line)) sent += 1;
        line.remove();
      } catch (error) {
        failed += 1;
        setState(line, "failed", visibleName(error.message));
        this.#onFailure(error);
      }
    }
    this.#busy = false;
    byId("uploads").hidden = failed === 0;
    if (failed) byId("uploads").append(dismissButton());
    await this.#onDone();
    announce(`Uploaded ${plural(sent, "file")}.${failed ? ` ${failed} failed.` : ""}`);
  }

  // Resolves to whether the file was written: not if the user keeps the one that is there.
  async #send(conversationId, file, line) {
    await checkReadable(file);
    // The list is that of the conversation that is open now.
    const known = conversationId === this.#conversation() && this.#exists(file.name);
    if (known && !(await mayReplace(file.name))) return false;
    const abort = new AbortController();
    const stop = el("button", { class: "button small", type: "button", "data-testid": "upload-stop" }, "Cancel");
    stop.addEventListener("click", () => abort.abort(new Error("Cancelled.")));
    const bar = el("progress", {
      max: Math.max(file.size, 1),
      value: 0,
      "aria-label": `Upload of ${visibleName(file.name)}`,
    });
    line.append(bar, stop);
    const onProgress = (loaded) => {
      bar.value = loaded;
      setState(line, "sending", `${bytes(Math.min(loaded, file.size))} of ${bytes(file.size)}`);
    };
    onProgress(0);
    const write = (options) =>
      this.#client.writeFile(conversationId, { path: file.name }, file, {
        onProgress,
        signal: abort.signal,
        ...options,
      });
    try {
      await write({ ifNew: !known });
      return true;
    } catch (error) {
      if (error.status === 412) {
        if (!(await mayReplace(file.name))) return false;
        await write({});
        return true;
      }
      if (error.status === 413) error.message = `The file has ${bytes(file.size)}. ${error.message}`;
      throw error;
    } finally {
      // Not lost with the button.
      if (stop === document.activeElement) byId("upload-input").focus();
      bar.remove();
      stop.remove();
    }
  }

  // In the capture phase, because the editor would otherwise insert a dropped file into the program.
  #listenForDrops() {
    const veil = byId("drop");
    const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
    const on = (type, act) =>
      document.addEventListener(
        type,
        (event) => {
          if (!carriesFiles(event)) return;
          event.preventDefault();
          event.stopPropagation();
          act(event);
        },
        { capture: true },
      );
    on("dragenter", () => (veil.hidden = false));
    on("dragover", (event) => {
      event.dataTransfer.dropEffect = "copy";
      veil.hidden = false;
    });
    on("dragleave", (event) => {
      if (!event.relatedTarget) veil.hidden = true;
    });
    on("drop", (event) => {
      veil.hidden = true;
      this.add([...event.dataTransfer.files]);
    });
  }
}

function uploadLine(file) {
  return el(
    "div",
    { class: "upload-line", "data-testid": "upload-line", "data-upload": "waiting" },
    icon("upload"),
    el("bdi", { class: "file-name" }, visibleName(file.name)),
    el("span", { class: "upload-state" }, "Waiting"),
  );
}

function setState(line, state, text) {
  line.dataset.upload = state;
  line.querySelector(".upload-state").textContent = text;
}

function dismissButton() {
  const button = el("button", { class: "button small", type: "button" }, "Dismiss");
  button.addEventListener("click", () => {
    byId("uploads").replaceChildren();
    byId("uploads").hidden = true;
    byId("upload-input").focus();
  });
  return button;
}

// Checked first, because `fetch` reports an unreadable file like a lost connection.
async function checkReadable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw new Error("The browser could not read it. Folders cannot be uploaded.");
  }
}
