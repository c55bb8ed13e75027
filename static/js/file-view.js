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
    const exact = file.pathEncoded?.split("/") ?? parts.map(encodeURIComponent);
    let at = root;
    for (const [depth, name] of parts.slice(0, -1).entries()) {
      // The middle of a long path is left out, and then its folders are not known.
      const key = exact.length === parts.length ? exact.slice(0, depth + 1).join("/") : null;
      if (!at.folders.has(name)) at.folders.set(name, { key, folders: new Map(), files: [] });
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
  const rename = inner.key ? rowButton("rename", `Rename ${visibleName(path)}`, "Rename", "rename-folder") : "";
  return el(
    "li",
    { "data-testid": "folder-row", "data-of": inner.key ?? "" },
    el("div", { class: "folder-head" }, head, rename),
    list,
  );
}

function count({ folders, files }) {
  return [...folders.values()].reduce((sum, inner) => sum + count(inner), files.length);
}

function fileRow(file) {
  const name = visibleName(file.path);
  const href = localHref(file.url);
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

const shownUrls = [];

/**
 * Shows the pictures among a run's files; returns how many there are. `read(file)` resolves to the content of one whose
 * link the page may not show: files can have an origin of their own.
 */
export function showImages(files, read) {
  const made = files.filter((file) => isPicture(file) && localHref(file.url));
  const box = byId("images");
  for (const url of shownUrls.splice(0)) URL.revokeObjectURL(url);
  box.replaceChildren(...made.slice(0, IMAGES_MAX).map((file) => figureOf(file, read)));
  if (made.length > IMAGES_MAX)
    box.append(el("p", {}, `${made.length - IMAGES_MAX} more images are in the list of files.`));
  box.hidden = made.length === 0;
  return made.length;
}

/**
 * A signed link below the page's own address: it names the server under its public one, and the page may be open under
 * another. Null when there is no such link.
 */
export function localHref(link) {
  if (typeof link !== "string" || !URL.canParse(link, document.baseURI)) return null;
  const url = new URL(link, document.baseURI);
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
    marks.push(el("span", { class: "mark odd", title: why }, "unusual name"));
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
      // Where files have an origin of their own, the browser opens it.
      target: "_blank",
      rel: "noopener noreferrer",
      "data-testid": "file-download",
      "data-expires": file.urlExpiresAt,
      "aria-label": `Download ${name}`,
      title: "Download",
    },
    icon("download"),
  );
}

function figureOf(file, read) {
  const name = visibleName(file.path);
  const href = localHref(file.url);
  const image = el("img", { src: href, alt: `${name}, an image made by this run`, loading: "lazy", decoding: "async" });
  const caption = el("figcaption", {}, el("bdi", {}, name), ` · ${bytes(file.size)}`);
  const why = "This image cannot be shown: download it instead.";
  const giveUp = () => image.replaceWith(el("p", { class: "placeholder" }, why));
  const again = async () => {
    image.addEventListener("error", giveUp, { once: true });
    try {
      const url = URL.createObjectURL(new Blob([await read(file)], { type: file.mediaType }));
      if (!image.isConnected) return URL.revokeObjectURL(url);
      shownUrls.push(url);
      image.src = url;
    } catch {
      giveUp();
    }
  };
  image.addEventListener("error", again, { once: true });
  const link = el(
    "a",
    { href, target: "_blank", rel: "noopener noreferrer", "aria-label": `Open ${name} in a new tab` },
    image,
  );
  return el("figure", {}, link, caption);
}
