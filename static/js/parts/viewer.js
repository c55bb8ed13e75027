// Owns the dialog that shows one file: as text that can be edited and saved, or as what it is. Loaded when the first
// file is opened. What a program wrote becomes text nodes, pictures, or a document in a frame of another origin.
import "../kit.js";
import { EditorState } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { CodeView } from "../code-view.js";
import { byId, el } from "../dom.js";
import { keyOf } from "../file-view.js";
import { save as download } from "../files.js";
import { languageOf } from "../languages.js";
import { announce, closesBy, confirmAction } from "../page.js";
import { bytes, visibleName } from "../text.js";

const TEXT_BYTES_MAX = 2 << 20;
const SHOWN_BYTES_MAX = 64 << 20;
const PICTURE = /^image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)$/;
/** Highlighted as a language, but no program in it. */
const DATA = /\.(json|jsx)$/i;
const GONE = "The file was deleted";
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** What can be shown of a file, best first. */
function viewsOf({ path, mediaType = "" }) {
  const ending = path.slice(path.lastIndexOf(".") + 1).toLowerCase();
  if (ending === "svg") return ["picture", "text"];
  if (PICTURE.test(mediaType)) return ["picture"];
  if (ending === "pdf") return ["pdf"];
  if (ending === "parquet") return ["parquet"];
  if (ending === "csv" || ending === "tsv") return ["table", "text"];
  if (ending === "md" || ending === "markdown") return ["markdown", "text"];
  if (ending === "html" || ending === "htm") return ["page", "text"];
  return ["text"];
}

const NAMES = {
  picture: "Picture",
  pdf: "Document",
  parquet: "Table",
  table: "Table",
  markdown: "Preview",
  page: "Preview",
  text: "Text",
};

export class Viewer {
  #client;
  #canUse;
  #onUse;
  #onSaved;
  #onClosed;
  #onFailure;
  #dialog = byId("viewer");
  #body = byId("viewer-body");
  /**
   * `{file, conversationId, blob, etag, isNew, crlf, text, saving}`; `text` is what the editor had when another view
   * was opened, null before that.
   */
  #open = null;
  #code = null;
  #savedText = "";
  #urls = [];
  #shown = 0;

  /**
   * `canUse(language)` returns whether a text may be a program, and `onUse({language, code})` gets one. `onSaved()` is
   * called when a file was written, and `onClosed(file)` when the dialog is closed.
   */
  constructor({ client, canUse, onUse, onSaved, onClosed, onFailure }) {
    this.#client = client;
    this.#canUse = canUse;
    this.#onUse = onUse;
    this.#onSaved = onSaved;
    this.#onClosed = onClosed;
    this.#onFailure = onFailure;
    byId("viewer-close").addEventListener("click", () => this.#close());
    byId("viewer-use").addEventListener("click", () => this.#use());
    byId("viewer-save").addEventListener("click", () => this.#save());
    closesBy(this.#dialog, () => this.#close());
    this.#dialog.addEventListener("keydown", (event) => {
      if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.#save();
    });
  }

  /** Shows a file of a listing; `{path}` alone is a new text file. */
  async open(conversationId, file) {
    const isNew = file.size === undefined;
    this.#clear();
    this.#open = { file, conversationId, isNew, blob: new Blob(), etag: null, text: null };
    byId("viewer-title").textContent = visibleName(file.path);
    byId("viewer-size").textContent = isNew ? "new" : bytes(file.size);
    byId("viewer-views").replaceChildren();
    this.#say("");
    this.#dialog.showModal();
    if (isNew) return this.#show("text");
    if (file.size > SHOWN_BYTES_MAX) return this.#refuse("It is too large to be shown here.");
    this.#say("Loading…");
    const opened = this.#open;
    try {
      const { blob, etag } = await this.#client.readFile(conversationId, file);
      if (this.#open !== opened) return;
      Object.assign(opened, { blob, etag });
      this.#say("");
      const views = viewsOf(file);
      byId("viewer-views").replaceChildren(...(views.length > 1 ? views.map((view) => this.#viewButton(view)) : []));
      await this.#show(views[0]);
    } catch (error) {
      if (this.#open !== opened) return;
      this.#refuse(visibleName(error.message));
      this.#onFailure(error);
    }
  }

  /** All files of a conversation were listed: says so where the open one, which came from a list, is not among them. */
  listed(conversationId, files) {
    const open = this.#open;
    if (!open?.etag || open.file.size === undefined || open.conversationId !== conversationId) return;
    if (!files.some((file) => keyOf(file) === keyOf(open.file))) this.#say(`${GONE}.`);
  }

  /** Whether the open file has changes that are not saved. */
  get isChanged() {
    const text = this.#code?.text ?? this.#open?.text ?? null;
    return text !== null && text !== this.#savedText;
  }

  #viewButton(view) {
    const button = el("button", { class: "button small", type: "button", "data-view": view }, NAMES[view]);
    button.addEventListener("click", () => this.#show(view));
    return button;
  }

  async #show(view) {
    const shown = (this.#shown += 1);
    if (this.#code) {
      this.#open.text = this.#code.text;
      this.#open.blob = asWritten(this.#code.text, this.#open);
    }
    this.#release();
    this.#body.replaceChildren();
    this.#body.dataset.view = view;
    for (const id of ["viewer-use", "viewer-save"]) byId(id).hidden = true;
    for (const button of byId("viewer-views").children) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
    try {
      const made = await this.#made(view);
      if (shown !== this.#shown) return;
      if (view === "text") this.#edit(made);
      else this.#body.append(made);
    } catch (error) {
      if (shown === this.#shown) this.#refuse(visibleName(error.message));
    }
  }

  // What a view shows: an element, or the text to edit.
  async #made(view) {
    const { blob, file } = this.#open;
    switch (view) {
      case "picture":
        return this.#picture(blob, file);
      case "pdf":
        return el("iframe", { src: this.#url(blob, "application/pdf"), title: visibleName(file.path) });
      case "table": {
        const text = await blob.slice(0, TEXT_BYTES_MAX).text();
        return (await import("./table.js")).tableOf(text, file.path, blob.size > TEXT_BYTES_MAX);
      }
      case "parquet":
        return (await import("./parquet.js")).tableOf(await blob.arrayBuffer());
      case "markdown":
        return (await import("./markdown.js")).documentOf(await this.#text(blob));
      case "page":
        return frame(await this.#text(blob), file);
      default:
        return this.#text(blob);
    }
  }

  async #text(blob) {
    if (blob.size > TEXT_BYTES_MAX) throw new Error(`It is larger than ${bytes(TEXT_BYTES_MAX)}.`);
    const raw = await blob.arrayBuffer();
    if (new Uint8Array(raw).includes(0)) throw new Error("It is not text.");
    try {
      return decoder.decode(raw);
    } catch {
      throw new Error("It is not text.");
    }
  }

  #picture(blob, file) {
    const type = file.path.toLowerCase().endsWith(".svg") ? "image/svg+xml" : file.mediaType;
    const image = el("img", { src: this.#url(blob, type), alt: visibleName(file.path) });
    const why = "This image cannot be shown: download it instead.";
    // It may fail after another view or file was opened.
    image.addEventListener("error", () => image.isConnected && this.#refuse(why));
    return image;
  }

  #edit(text) {
    const { file } = this.#open;
    // The editor knows one kind of line end. A file that has CRLF throughout keeps it; in any other file a carriage
    // return is a character of its line.
    this.#open.crlf ??= text.includes("\r\n") && !/(^|[^\r])\n|\r(?!\n)/.test(text);
    const update = () => {
      byId("viewer-save").disabled = !this.isChanged && !this.#open?.isNew;
      if (this.isChanged) this.#say("Not saved");
    };
    this.#code = new CodeView({
      parent: this.#body,
      text,
      // The first Escape lets Tab leave the text, the second one closes the file.
      onEscape: () => this.#code.tabLeaves && Boolean(this.#close()),
      extensions: [
        this.#open.crlf ? [] : EditorState.lineSeparator.of("\n"),
        EditorView.contentAttributes.of({ "aria-label": `Text of ${visibleName(file.path)}` }),
        EditorView.updateListener.of(({ docChanged }) => docChanged && update()),
      ],
    });
    this.#body.cmView = this.#code.view;
    this.#code.setLanguage(languageOf(file.path));
    byId("viewer-use").hidden = DATA.test(file.path) || !this.#canUse(languageOf(file.path));
    this.#code.setDark(byId("theme").dataset.showing === "dark");
    if (this.#open.text === null) this.#savedText = this.#code.text;
    byId("viewer-save").hidden = false;
    update();
    this.#code.view.focus();
  }

  async #use() {
    const program = { language: languageOf(this.#open.file.path), code: this.#code.text };
    if (await this.#close()) this.#onUse(program);
  }

  async #save() {
    const open = this.#open;
    if (!this.#code || byId("viewer-save").disabled || open.saving) return;
    open.saving = true;
    const text = this.#code.text;
    const { file, conversationId } = open;
    this.#say("Saving…");
    try {
      const now = await this.#client.etagOf(conversationId, file);
      const changed = open.isNew ? now !== null : open.etag !== null && now !== open.etag;
      const written = await this.#write(open, text, changed, now === null);
      if (written !== undefined) {
        const etag = written ?? (await this.#client.etagOf(conversationId, file));
        Object.assign(open, { etag, isNew: false });
        this.#onSaved();
      }
      // Another file may be open by now.
      if (this.#open !== open) return;
      if (written === undefined) return this.#say("Not saved");
      this.#savedText = text;
      byId("viewer-size").textContent = bytes(asWritten(text, open).size);
      const save = byId("viewer-save");
      // A disabled button loses the keyboard focus.
      if (!this.isChanged && save === document.activeElement) this.#code?.view.focus();
      save.disabled = !this.isChanged;
      this.#say(this.isChanged ? "Not saved" : "Saved");
    } catch (error) {
      if (this.#open === open) this.#say(`Not saved: ${visibleName(error.message)}`);
      this.#onFailure(error);
    } finally {
      open.saving = false;
    }
  }

  // Resolves to the new version, or undefined when the user keeps the other one.
  async #write(open, text, changed, isGone) {
    const { file, conversationId, isNew, etag } = open;
    const blob = asWritten(text, open);
    const write = (options) => this.#client.writeFile(conversationId, file, blob, options);
    if (!changed) {
      try {
        return await write(isNew ? { ifNew: true } : { ifMatch: etag });
      } catch (error) {
        if (error.status !== 412) throw error;
      }
    }
    const name = visibleName(file.path);
    const sure = await confirmAction(
      changed && isGone
        ? { title: GONE, text: `${name}\nIt was deleted after you opened it. Save it again?`, yes: "Save" }
        : {
            title: "The file has changed",
            text: `${name}\nIt was changed after you opened it. Replace that version with yours?`,
            yes: "Replace it",
          },
    );
    return sure ? ((await write({})) ?? null) : undefined;
  }

  #refuse(why) {
    const { file, conversationId } = this.#open;
    const button = el("button", { class: "button", type: "button" }, "Download");
    button.addEventListener("click", async () => {
      try {
        const { blob } = await this.#client.readFile(conversationId, file);
        download(blob, file.path.slice(file.path.lastIndexOf("/") + 1));
      } catch (error) {
        this.#say(visibleName(error.message));
        this.#onFailure(error);
      }
    });
    this.#say("");
    announce(why);
    this.#body.replaceChildren(el("div", { class: "refusal" }, el("p", {}, why), button));
  }

  // Resolves to whether it is closed.
  async #close() {
    const text = "Your changes to this file are not saved.";
    if (this.isChanged && !(await confirmAction({ title: "Discard the changes?", text, yes: "Discard" }))) return false;
    const { file } = this.#open;
    this.#dialog.close();
    this.#clear();
    this.#onClosed(file);
    return true;
  }

  #clear() {
    this.#shown += 1;
    this.#open = null;
    this.#release();
    this.#body.replaceChildren();
    delete this.#body.cmView;
    for (const id of ["viewer-use", "viewer-save"]) byId(id).hidden = true;
  }

  #say(text) {
    const note = byId("viewer-note");
    // The same text again would be read out at each key.
    if (text && text !== note.textContent) announce(text);
    note.textContent = text;
  }

  #url(blob, type) {
    const url = URL.createObjectURL(new Blob([blob], { type }));
    this.#urls.push(url);
    return url;
  }

  #release() {
    this.#code?.view.destroy();
    this.#code = null;
    for (const url of this.#urls.splice(0)) URL.revokeObjectURL(url);
  }
}

function asWritten(text, { crlf }) {
  return new Blob([crlf ? text.replaceAll("\n", "\r\n") : text]);
}

// The frame's own policy gives the document another origin, and neither network nor windows.
function frame(text, { path }) {
  const element = el("iframe", { src: "frame", sandbox: "allow-scripts", title: `Preview of ${visibleName(path)}` });
  // `once`: writing the document into the frame loads it again.
  element.addEventListener("load", () => element.contentWindow.postMessage(text, "*"), { once: true });
  return element;
}
