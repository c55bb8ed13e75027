// Owns uploads: by the button, and by dropping files anywhere on the page. One file at a time, each with its own status
// line; a failed one does not stop the rest.
import { byId, el, icon } from "./dom.js";
import { announce, page } from "./page.js";
import { bytes, plural, visibleName } from "./text.js";

// Above this a connection that breaks during the upload most likely means "too large".
const LARGE_BYTES = 512 * 1024;

export class Uploads {
  #client;
  #conversation;
  #onDone;
  #onFailure;
  #queue = [];
  #busy = false;

  constructor({ client, conversation, onDone, onFailure }) {
    this.#client = client;
    this.#conversation = conversation;
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

  add(files) {
    if (byId("upload-input").disabled || !files.length) return;
    if (!this.#busy) byId("uploads").replaceChildren();
    byId("uploads").hidden = false;
    const conversationId = this.#conversation();
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
      setState(line, "sending", "Sending…");
      try {
        await this.#send(conversationId, file);
        sent += 1;
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

  async #send(conversationId, file) {
    await checkReadable(file);
    try {
      await this.#client.writeFile(conversationId, file.name, file);
    } catch (error) {
      if (error.code === "unreachable" && file.size > LARGE_BYTES) {
        throw new Error(`The connection was cut. With ${bytes(file.size)} it may be larger than the server accepts.`);
      }
      if (error.status === 413) error.message = `It has ${bytes(file.size)}. ${error.message}`;
      throw error;
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
