// Owns the files panel: which files the conversation has, as a tree, what the last run did to them, and what can be
// done with them: open, rename, delete, download all.
import { byId, showText } from "./dom.js";
import { fileTree, isExpired, keyOf, localHref } from "./file-view.js";
import { announce, ask, confirmAction, page, toast } from "./page.js";
import { visibleName } from "./text.js";

// A conversation may have more; the rest is reached through the API.
const LISTED_MAX = 5000;

export class Files {
  #client;
  #conversation;
  #onOpen;
  #onListed;
  #onFailure;
  #changes = new Map();
  #files = [];
  #closed = new Set();
  #asked = 0;

  /**
   * `onOpen(file, conversationId)` shows a file; `{path}` alone is one that does not exist yet.
   * `onListed(conversationId, files)` gets the files when the server has listed all of them.
   */
  constructor({ client, conversation, onOpen, onListed, onFailure }) {
    this.#client = client;
    this.#conversation = conversation;
    this.#onOpen = onOpen;
    this.#onListed = onListed;
    this.#onFailure = onFailure;
    byId("files-refresh").addEventListener("click", async () => {
      if (await this.refresh()) announce(`${byId("files-count").textContent || "No"} files.`);
    });
    byId("files-download").addEventListener("click", () => this.#downloadAll());
    byId("file-new").addEventListener("click", () => this.#create());
    byId("files").addEventListener("click", (event) => this.#clicked(event));
    document.addEventListener("visibilitychange", () => {
      // Another tab may have changed them.
      if (!document.hidden && (page.state === "ready" || page.state === "running")) this.refresh();
    });
    page.onState((state) => {
      const off = state === "needs-token" || state === "error";
      for (const id of ["files-refresh", "files-download", "file-new"]) byId(id).disabled = off;
    });
  }

  /** Whether there is a file of this name, as far as the list knows. */
  has(path) {
    return this.#files.some((file) => file.path === path);
  }

  /** Focuses the row of a file, unless the focus is elsewhere: the list may be another one than when it was opened. */
  focus(file) {
    if (document.activeElement === document.body) findFocus({ key: keyOf(file), act: "open" })?.focus();
  }

  /** Clears the list for another conversation, then fills it. */
  async reset() {
    this.#changes.clear();
    this.#closed.clear();
    this.#show([], false);
    await this.refresh();
  }

  /** Marks the files that a finished run made or changed, then asks the server, since the run may have deleted some. */
  showRun(made) {
    this.#changes = new Map(made.map((file) => [keyOf(file), file.change]));
    const others = this.#files
      .filter((file) => !this.#changes.has(keyOf(file)))
      .map((file) => ({ ...file, change: "unchanged" }));
    this.#show([...made, ...others], false);
    return this.refresh();
  }

  /** Reloads the list; resolves to whether the server answered. */
  async refresh() {
    const asked = ++this.#asked;
    const conversation = this.#conversation();
    try {
      const files = [];
      let more = null;
      do {
        const answer = await this.#client.listFiles(conversation, more);
        if (asked !== this.#asked) return false;
        files.push(...(answer.files ?? []));
        more = answer.after ?? (answer.truncated ? true : null);
      } while (typeof more === "string" && files.length < LISTED_MAX);
      this.#show(
        files.map((file) => ({ ...file, change: this.#changes.get(keyOf(file)) ?? file.change })),
        more !== null,
      );
      if (more === null) this.#onListed(conversation, files);
      return true;
    } catch (error) {
      if (asked === this.#asked) this.#failed("The files could not be listed", error);
      return false;
    }
  }

  #show(files, truncated) {
    this.#files = files;
    const focused = byId("files").contains(document.activeElement) ? focusKey(document.activeElement) : null;
    byId("files").replaceChildren(...fileTree(files, this.#closed));
    // The user may have scrolled on.
    if (focused) findFocus(focused)?.focus({ preventScroll: true });
    byId("files-count").textContent = files.length ? `${files.length}${truncated ? "+" : ""}` : "";
    byId("files-empty").hidden = files.length > 0;
    byId("files-download").hidden = files.length === 0;
    showText(
      byId("files-notice"),
      truncated ? "Only the first files are listed. Delete some, or pack them into one archive." : "",
    );
  }

  #clicked(event) {
    const link = event.target.closest("a[data-expires]");
    if (link) return this.#openLink(event, link);
    const button = event.target.closest("button[data-act]");
    if (!button) return;
    if (button.dataset.act === "fold") return this.#fold(button);
    if (button.dataset.act === "rename-folder") return this.#rename(folderOf(button.closest("[data-of]")));
    const file = this.#files.find((one) => keyOf(one) === button.closest("[data-key]")?.dataset.key);
    if (!file) return;
    if (button.dataset.act === "open") this.#onOpen(file, this.#conversation());
    if (button.dataset.act === "rename") this.#rename(file);
    if (button.dataset.act === "delete") this.#delete(file);
  }

  #fold(button) {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.closest("li").querySelector(":scope > ul").hidden = !open;
    if (open) this.#closed.delete(button.dataset.folder);
    else this.#closed.add(button.dataset.folder);
  }

  async #create() {
    const conversation = this.#conversation();
    const path = await ask({
      title: "New text file",
      label: "Name, with folders if needed",
      yes: "Create",
      value: "",
    });
    if (!path) return;
    // The list is that of the conversation that is open now.
    const existing = conversation === this.#conversation() && this.#files.find((file) => file.path === path);
    this.#onOpen(existing || { path }, conversation);
  }

  // `item` is a file, or a folder `{path, pathEncoded, isFolder}`.
  async #rename(item) {
    const name = visibleName(item.path);
    const conversation = this.#conversation();
    const path = await ask({ title: `Rename ${name}`, label: "New name", yes: "Rename", value: item.path });
    if (!path || path === item.path) return;
    try {
      if (await this.#move(conversation, item, path)) announce(`Renamed to ${visibleName(path)}.`);
    } catch (error) {
      this.#failed(`${name} could not be renamed`, error);
    }
    await this.refresh();
    findFocus(item.isFolder ? { folder: `${path}/` } : { key: path, act: "rename" })?.focus();
  }

  // Resolves to whether it was moved: not if the user keeps the file that has the name.
  async #move(conversation, item, path) {
    const move = (replace) => this.#client.moveFile(conversation, item, path, replace);
    try {
      await move(false);
    } catch (error) {
      if (error.status !== 412 || item.isFolder) throw error;
      if (!(await mayReplace(path))) return false;
      await move(true);
    }
    return true;
  }

  async #delete(file) {
    const name = visibleName(file.path);
    const conversation = this.#conversation();
    const sure = await confirmAction({ title: "Delete this file?", text: name, yes: "Delete" });
    if (!sure) return;
    const rows = () => [...byId("files").querySelectorAll("li[data-key]")];
    const index = rows().findIndex((row) => row.dataset.key === keyOf(file));
    try {
      await this.#client.deleteFile(conversation, file);
      announce(`Deleted ${name}.`);
    } catch (error) {
      this.#failed(`${name} could not be deleted`, error);
    }
    await this.refresh();
    const row = rows()[Math.min(index, rows().length - 1)];
    (row?.querySelector("button[data-act=delete]") ?? byId("files-refresh")).focus();
  }

  async #downloadAll() {
    const button = byId("files-download");
    if (button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true");
    try {
      const conversation = this.#conversation();
      const { url } = await this.#client.linkArchive(conversation);
      follow(localHref(url), `${conversation}.tar`);
      announce("The archive is downloaded.");
    } catch (error) {
      this.#failed("The files could not be downloaded", error);
    }
    button.removeAttribute("aria-busy");
  }

  async #openLink(event, link) {
    if (!isExpired(link.dataset.expires)) return;
    event.preventDefault();
    if (await this.refresh()) toast("The link had expired. The list is up to date now: try again.");
  }

  #failed(what, error) {
    toast(`${what}: ${visibleName(error.message)}`);
    this.#onFailure(error);
  }
}

/** Asks whether a file may be replaced. */
export function mayReplace(path) {
  return confirmAction({
    title: "Replace this file?",
    text: `${visibleName(path)}\nA file of this name exists. Its content will be lost.`,
    yes: "Replace",
  });
}

/** Lets the browser save a Blob under a name. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  follow(url, name);
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// The browser saves what is there while it arrives.
function follow(href, name) {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  link.click();
}

function folderOf(row) {
  const path = row.querySelector("[data-folder]").dataset.folder.replace(/\/$/, "");
  return { path, pathEncoded: row.dataset.of, isFolder: true };
}

function focusKey(element) {
  return {
    key: element.closest("[data-key]")?.dataset.key,
    folder: element.dataset.folder,
    act: element.dataset.act,
  };
}

function findFocus({ key, folder, act }) {
  const list = byId("files");
  if (folder) return list.querySelector(`button[data-folder="${CSS.escape(folder)}"]`);
  return key && list.querySelector(`li[data-key="${CSS.escape(key)}"] [data-act="${act}"]`);
}
