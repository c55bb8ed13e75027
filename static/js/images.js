// Owns the pictures that a run made, below its output.
import { byId, el } from "./dom.js";
import { fileHref, isPicture } from "./links.js";
import { bytes, visibleName } from "./text.js";

const IMAGES_MAX = 24;

/** Shows those of a run's files that are pictures; returns how many there are. */
export function showImages(files) {
  const made = files.filter((file) => isPicture(file) && fileHref(file));
  const box = byId("images");
  box.replaceChildren(...made.slice(0, IMAGES_MAX).map(figureOf));
  if (made.length > IMAGES_MAX) box.append(el("p", {}, `${made.length - IMAGES_MAX} more images are in the list of files.`));
  box.hidden = made.length === 0;
  return made.length;
}

function figureOf(file) {
  const name = visibleName(file.path);
  const href = fileHref(file);
  const image = el("img", { src: href, alt: `${name}, an image made by this run`, loading: "lazy", decoding: "async" });
  const caption = el("figcaption", {}, el("bdi", {}, name), ` · ${bytes(file.size)}`);
  image.addEventListener("error", () => image.replaceWith(el("p", { class: "placeholder" }, "This image cannot be shown.")));
  const link = el("a", { href, target: "_blank", rel: "noopener noreferrer", "aria-label": `Open ${name} in a new tab` }, image);
  return el("figure", {}, link, caption);
}
