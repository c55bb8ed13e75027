// Owns the files panel: which files the conversation has, what the last run did to them, and deleting them.
import { byId, showText } from "./dom.js";
import { fileRow, isExpired, keyOf } from "./file-view.js";
import { announce, confirmAction, page, toast } from "./page.js";
import { visibleName } from "./text.js";

export class Files {
  #client;
  #conversation;
  #onFailure;
  #changes = new Map();
  #files = [];
  #asked = 0;

  constructor({ client, conversation, onFailure }) {
    this.#client = client;
    this.#conversation = conversation;
    this.#onFailure = onFailure;
    byId("files-refresh").addEventListener("click", async () => {
      if (await this.refresh()) announce(`${byId("files-count").textContent || "No"} files.`);
    });
    byId("files").addEventListener("click", (event) => this.#openLink(event));
    page.onState((state) => {
      byId("files-refresh").disabled = state === "needs-token" || state === "error";
    });
  }

  /** Clears the list for another conversation, then fills it. */
  async reset() {
    this.#changes.clear();
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
    try {
      const { files = [], truncated = false } = await this.#client.listFiles(this.#conversation());
      if (asked !== this.#asked) return false;
      this.#show(
        files.map((file) => ({ ...file, change: this.#changes.get(keyOf(file)) ?? file.change })),
        truncated,
      );
      return true;
    } catch (error) {
      if (asked === this.#asked) this.#failed("The files could not be listed", error);
      return false;
    }
  }

  #show(files, truncated) {
    this.#files = files;
    byId("files").replaceChildren(...files.map((file) => fileRow(file, () => this.#delete(file))));
    byId("files-count").textContent = files.length ? `${files.length}${truncated ? "+" : ""}` : "";
    byId("files-empty").hidden = files.length > 0;
    showText(
      byId("files-notice"),
      truncated ? "Only the first files are listed. Delete some, or pack them into one archive." : "",
    );
  }

  async #delete(file) {
    const name = visibleName(file.path);
    const sure = await confirmAction({ title: "Delete this file?", text: name, yes: "Delete" });
    if (!sure) return;
    const index = [...byId("files").children].findIndex((row) => row.dataset.key === keyOf(file));
    try {
      await this.#client.deleteFile(this.#conversation(), file);
      announce(`Deleted ${name}.`);
    } catch (error) {
      this.#failed(`${name} could not be deleted`, error);
    }
    await this.refresh();
    const row = byId("files").children[Math.min(index, byId("files").children.length - 1)];
    (row?.querySelector("button") ?? byId("files-refresh")).focus();
  }

  async #openLink(event) {
    const link = event.target.closest("a[data-expires]");
    if (!link || !isExpired(link.dataset.expires)) return;
    event.preventDefault();
    if (await this.refresh()) toast("The link had expired. The list is up to date now: try again.");
  }

  #failed(what, error) {
    toast(`${what}: ${visibleName(error.message)}`);
    this.#onFailure(error);
  }
}
