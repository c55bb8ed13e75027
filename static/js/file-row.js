// Owns how one file looks in the list. Names come from programs: they are shown with every hidden character visible.
import { el, icon } from "./dom.js";
import { fileHref, isPicture } from "./links.js";
import { bytes, isDeceptive, visibleName } from "./text.js";

const MARKS = { created: "new", changed: "changed" };
const TABLES = /csv|tab-separated|spreadsheet|excel|sqlite|parquet/;

/** What tells one file of a conversation from every other: the exact bytes of its name. */
export function keyOf(file) {
  return file.pathEncoded ?? file.path;
}

export function fileRow(file, onDelete) {
  const name = visibleName(file.path);
  const href = fileHref(file);
  const bin = el("button", {
    class: "button quiet square", type: "button", "data-testid": "file-delete", "aria-label": `Delete ${name}`, title: "Delete",
  }, icon("trash"));
  bin.addEventListener("click", onDelete);
  return el(
    "li",
    { class: "file", "data-testid": "file-row", "data-key": keyOf(file), "data-change": file.change },
    icon(isPicture(file) ? "image" : TABLES.test(file.mediaType) ? "table" : "file"),
    el("span", { class: "file-name", title: file.pathEncoded ?? name }, nameOf(name), ...marksOf(file)),
    el("span", { class: "file-size" }, bytes(file.size)),
    href ? download(file, name, href) : el("span"),
    bin,
  );
}

function nameOf(name) {
  const cut = name.lastIndexOf("/") + 1;
  return el("bdi", {}, cut ? el("span", { class: "file-folder" }, name.slice(0, cut)) : "", name.slice(cut));
}

function marksOf(file) {
  const marks = [];
  if (MARKS[file.change]) marks.push(el("span", { class: `mark ${file.change}` }, MARKS[file.change]));
  if (file.pathEncoded !== undefined || isDeceptive(file.path)) {
    const why = "The name holds bytes or characters that cannot be seen as they are; they are shown as codes.";
    marks.push(el("span", { class: "mark odd", title: why }, "odd name"));
  }
  return marks;
}

function download(file, name, href) {
  return el("a", {
    class: "button quiet square", href, download: name.slice(name.lastIndexOf("/") + 1), "data-testid": "file-download",
    "data-expires": file.urlExpiresAt, "aria-label": `Download ${name}`, title: "Download",
  }, icon("download"));
}
