// Owns how one file looks: its link, its row in the list, its picture below the output. Names come from programs, so
// every hidden character in them is made visible.
import { byId, el, icon } from "./dom.js";
import { bytes, isDeceptive, plural, visibleName } from "./text.js";

const IMAGES_MAX = 24;
// An SVG file is no picture here: its signed link is an attachment. The viewer shows it.
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const TABLES = /csv|tab-separated|spreadsheet|excel|sqlite|parquet/;
const MARKS = { created: "new", changed: "changed" };

/** The key of a file in its conversation: the exact bytes of its name. */
export function keyOf(file) {
  return file.pathEncoded ?? file.path;
}

export function isExpired(urlExpiresAt, now = Date.now()) {
  const end = Date.parse(urlExpiresAt);
  return Number.isFinite(end) && end <= now;
}

/** The list of files as a tree; `closed` are the folders that are not unfolded. */
export function fileTree(files, closed) {
  const root = { folders: new Map(), files: [] };
  for (const file of files) {
    const parts = file.path.split("/");
    let at = root;
    for (const name of parts.slice(0, -1)) {
      if (!at.folders.has(name)) at.folders.set(name, { folders: new Map(), files: [] });
      at = at.folders.get(name);
    }
    at.files.push(file);
  }
  return branch(root, "", closed);
}

function branch({ folders, files }, path, closed) {
  const rows = [...folders].map(([name, inner]) => folderRow(name, inner, `${path}${name}/`, closed));
  return [...rows, ...files.map((file) => fileRow(file))];
}

function folderRow(name, inner, path, closed) {
  const shown = visibleName(name);
  const open = !closed.has(path);
  const list = el("ul", { "aria-label": visibleName(path) }, ...branch(inner, path, closed));
  list.hidden = !open;
  const head = el(
    "button",
    {
      class: "folder",
      type: "button",
      "data-act": "fold",
      "data-folder": path,
      "aria-expanded": open ? "true" : "false",
    },
    icon("open"),
    icon("folder"),
    el("bdi", { class: "file-name" }, shown),
    el("span", { class: "file-size" }, plural(count(inner), "file")),
  );
  return el("li", { "data-testid": "folder-row" }, head, list);
}

function count({ folders, files }) {
  return [...folders.values()].reduce((sum, inner) => sum + count(inner), files.length);
}

function fileRow(file) {
  const name = visibleName(file.path);
  const href = fileHref(file);
  const own = name.slice(name.lastIndexOf("/") + 1);
  return el(
    "li",
    { class: "file", "data-testid": "file-row", "data-key": keyOf(file), "data-change": file.change },
    el(
      "button",
      {
        class: "file-open",
        type: "button",
        "data-act": "open",
        "data-testid": "file-open",
        title: file.pathEncoded ?? name,
      },
      icon(isPicture(file) ? "image" : TABLES.test(file.mediaType) ? "table" : "file"),
      el("span", { class: "file-name" }, el("bdi", {}, own), ...marksOf(file)),
      el("span", { class: "file-size" }, bytes(file.size)),
    ),
    rowButton("rename", `Rename ${name}`, "Rename"),
    href ? download(file, name, href) : el("span"),
    rowButton("trash", `Delete ${name}`, "Delete", "delete"),
  );
}

function rowButton(symbol, label, title, act = symbol) {
  const attributes = { class: "button quiet square", type: "button", "data-act": act, "data-testid": `file-${act}` };
  return el("button", { ...attributes, "aria-label": label, title }, icon(symbol));
}

/** Shows the pictures among a run's files; returns how many there are. */
export function showImages(files) {
  const made = files.filter((file) => isPicture(file) && fileHref(file));
  const box = byId("images");
  box.replaceChildren(...made.slice(0, IMAGES_MAX).map(figureOf));
  if (made.length > IMAGES_MAX)
    box.append(el("p", {}, `${made.length - IMAGES_MAX} more images are in the list of files.`));
  box.hidden = made.length === 0;
  return made.length;
}

// The signed URL names the server under its public address, and the page may be open under another one: only path and
// query are used, below the page's own address. Null when there is no such link.
function fileHref(file) {
  if (typeof file.url !== "string" || !URL.canParse(file.url, document.baseURI)) return null;
  const url = new URL(file.url, document.baseURI);
  const start = url.pathname.indexOf("/files/");
  return start < 0 ? null : new URL(`.${url.pathname.slice(start)}${url.search}`, document.baseURI).href;
}

function isPicture(file) {
  return PICTURES.has(file.mediaType);
}

function marksOf(file) {
  const marks = [];
  if (MARKS[file.change]) marks.push(el("span", { class: `mark ${file.change}` }, MARKS[file.change]));
  if (file.pathEncoded !== undefined || isDeceptive(file.path)) {
    const why = "The name contains bytes or characters that are not visible; they are shown as codes.";
    marks.push(el("span", { class: "mark odd", title: why }, "odd name"));
  }
  return marks;
}

function download(file, name, href) {
  return el(
    "a",
    {
      class: "button quiet square",
      href,
      download: name.slice(name.lastIndexOf("/") + 1),
      "data-testid": "file-download",
      "data-expires": file.urlExpiresAt,
      "aria-label": `Download ${name}`,
      title: "Download",
    },
    icon("download"),
  );
}

function figureOf(file) {
  const name = visibleName(file.path);
  const href = fileHref(file);
  const image = el("img", { src: href, alt: `${name}, an image made by this run`, loading: "lazy", decoding: "async" });
  const caption = el("figcaption", {}, el("bdi", {}, name), ` · ${bytes(file.size)}`);
  image.addEventListener("error", () =>
    image.replaceWith(el("p", { class: "placeholder" }, "This image cannot be shown.")),
  );
  const link = el(
    "a",
    { href, target: "_blank", rel: "noopener noreferrer", "aria-label": `Open ${name} in a new tab` },
    image,
  );
  return el("figure", {}, link, caption);
}
