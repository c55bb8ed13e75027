// Owns the dialog of skills: which there are, what each says, and the caller's own, which are uploaded and deleted.
// Loaded when it is opened. A skill's text is another's: it is shown as text and as the elements of a fixed set.
import "../kit.js";
import { byId, el, icon, showText } from "../dom.js";
import { save } from "../files.js";
import { announce, confirmAction } from "../page.js";
import { bytes, visibleName } from "../text.js";
import { documentOf } from "./markdown.js";

const FRONT_MATTER = /^---\r?\n[\s\S]*?\r?\n---\r?\n/;

export class Skills {
  #client;
  #onFailure;
  #skills = [];
  /** Number of the newest view: an answer for an older one is dropped. */
  #asked = 0;
  #dialog = byId("skills-dialog");

  constructor({ client, onFailure }) {
    this.#client = client;
    this.#onFailure = onFailure;
    byId("skills-close").addEventListener("click", () => this.#dialog.close());
    byId("skills-back").addEventListener("click", () => this.#back());
    byId("skills-upload").addEventListener("click", () => byId("skills-zip").click());
    byId("skills-zip").addEventListener("change", () => this.#upload());
    byId("skills-list").addEventListener("click", (event) => this.#picked(event));
    byId("skill-files").addEventListener("click", (event) => this.#download(event));
  }

  async open() {
    this.#show(null);
    this.#dialog.showModal();
    await this.#load();
  }

  async #load() {
    await this.#try(async () => {
      this.#skills = (await this.#client.get("v1/skills")).skills;
      byId("skills-list").replaceChildren(...this.#skills.map(row));
      byId("skills-empty").hidden = this.#skills.length > 0;
    });
  }

  #picked(event) {
    const button = event.target.closest("button");
    const skill = this.#skills[button?.closest("li").dataset.index];
    if (!skill) return;
    if (button.dataset.act === "delete") return this.#delete(skill);
    return this.#read(skill);
  }

  #read({ name, location }) {
    const asked = (this.#asked += 1);
    return this.#try(async () => {
      const address = `v1/skills/${encodeURIComponent(name)}`;
      const [details, text] = await Promise.all([
        this.#client.get(address),
        this.#client.blob(`${address}/files/SKILL.md`).then((blob) => blob.text()),
      ]);
      if (asked !== this.#asked) return;
      byId("skill-place").textContent = visibleName(location);
      byId("skill-files").replaceChildren(...details.files.map((file) => fileRow(name, file)));
      byId("skill-text").replaceChildren(documentOf(text.replace(FRONT_MATTER, "")));
      this.#show(name);
    });
  }

  #download(event) {
    const { address, name } = event.target.closest("button")?.dataset ?? {};
    if (address) return this.#try(async () => save(await this.#client.blob(address), name));
  }

  // One of the two views: the list, or one skill.
  #show(name) {
    this.#asked += 1;
    showText(byId("skills-error"), "");
    byId("skills-title").textContent = name ? visibleName(name) : "Skills";
    byId("skills-all").hidden = Boolean(name);
    byId("skill").hidden = !name;
    if (name) byId("skills-back").focus();
  }

  #back() {
    this.#show(null);
    (byId("skills-list").querySelector("button") ?? byId("skills-close")).focus();
  }

  #upload() {
    const input = byId("skills-zip");
    const [zip] = input.files;
    input.value = "";
    if (!zip) return;
    return this.#try(async () => {
      const name = zip.name.replace(/\.zip$/i, "");
      const isThere = this.#skills.some((one) => one.name === name && one.source === "user");
      const text = `${visibleName(name)}\nThe zip takes the place of all its files.`;
      if (isThere && !(await confirmAction({ title: "Replace this skill?", text, yes: "Replace" }))) return;
      await this.#client.upload(`v1/skills/${encodeURIComponent(name)}`, zip, "application/zip");
      announce(`Uploaded ${visibleName(name)}.`);
      await this.#load();
    });
  }

  #delete({ name }) {
    return this.#try(async () => {
      const text = `${visibleName(name)}\nPrograms that begin later do not find it.`;
      if (!(await confirmAction({ title: "Delete this skill?", text, yes: "Delete" }))) return;
      await this.#client.remove(`v1/skills/${encodeURIComponent(name)}`);
      announce(`Deleted ${visibleName(name)}.`);
      await this.#load();
      byId("skills-upload").focus();
    });
  }

  async #try(act) {
    showText(byId("skills-error"), "");
    try {
      await act();
    } catch (error) {
      showText(byId("skills-error"), visibleName(error.message));
      this.#onFailure(error);
    }
  }
}

function row({ name, description, source }, index) {
  const shown = visibleName(name);
  const open = el(
    "button",
    { class: "conversation-open", type: "button" },
    el("span", { class: "conversation-name" }, shown),
    el("span", { class: "conversation-facts" }, `${source === "user" ? "yours · " : ""}${visibleName(description)}`),
  );
  const attributes = { class: "button quiet square", type: "button", "data-act": "delete", title: "Delete" };
  const bin = source === "user" && el("button", { ...attributes, "aria-label": `Delete ${shown}` }, icon("trash"));
  return el("li", { "data-index": index, "data-testid": "skill-row" }, open, ...(bin ? [bin] : []));
}

function fileRow(skill, { path, pathEncoded, size }) {
  const address = `v1/skills/${encodeURIComponent(skill)}/files/${pathEncoded}`;
  const shown = visibleName(path);
  const attributes = { type: "button", class: "button quiet small", "data-address": address, title: "Download" };
  const button = el("button", { ...attributes, "data-name": path.split("/").at(-1) }, shown);
  return el("li", {}, button, " ", el("span", { class: "conversation-facts" }, bytes(size)));
}
