// Owns the output panel: verdict, sentence, both streams, images, figures. It is told of a run in steps and keeps nothing.
import { byId, el, showText } from "./dom.js";
import { fileHref, isPicture } from "./links.js";
import { announce } from "./page.js";
import { store } from "./store.js";
import { bytes, duration, plural, visibleName, visibleOutput } from "./text.js";
import { showVerdict } from "./verdict.js";

const IMAGES_MAX = 24;

export class Output {
  constructor() {
    for (const name of ["stdout", "stderr"]) {
      byId(`${name}-copy`).addEventListener("click", () => copy(byId(name).textContent));
    }
    const wrap = byId("wrap");
    const show = () => {
      wrap.setAttribute("aria-pressed", String(store.wrap));
      byId("output-body").classList.toggle("wrapped", store.wrap);
    };
    wrap.addEventListener("click", () => {
      store.wrap = !store.wrap;
      show();
    });
    show();
  }

  begin() {
    for (const id of ["output-empty", "sentence", "stdout-block", "stderr-block", "images", "figures"]) byId(id).hidden = true;
    byId("images").replaceChildren();
    byId("stdout").textContent = "";
    byId("stderr").textContent = "";
    showVerdict({ ended: "running" });
  }

  tick(elapsed) {
    showText(byId("wall"), elapsed);
  }

  finish(result) {
    const { outcome, figures = {} } = result;
    const verdict = showVerdict(outcome);
    const wall = duration(figures.wallMs);
    showText(byId("wall"), wall);
    this.#sentence(outcome);
    showStream("stdout", result.stdout, result.stdoutTruncated, figures.stdoutBytes);
    showStream("stderr", result.stderr, result.stderrTruncated, figures.stderrBytes);
    this.#images(result.files ?? []);
    if (!result.stdout && !result.stderr && byId("images").hidden) {
      showText(byId("output-empty"), "The program printed nothing.");
    }
    showText(byId("figures"), describeFigures(figures));
    announce(`${verdict}, after ${wall}. ${visibleName(outcome.sentence ?? "")}`);
    this.#reveal();
  }

  /** The server, not the program, failed. */
  fail(error) {
    showVerdict({ ended: "error" });
    byId("wall").hidden = true;
    const request = error.requestId ? ` (request ${error.requestId})` : "";
    const text = visibleName(error.message + request);
    showText(byId("sentence"), text);
    announce(text);
    this.#reveal();
  }

  // "Exited 0" needs no sentence; every other end does.
  #sentence(outcome) {
    const quiet = outcome.ended === "exited" && outcome.exitCode === 0;
    showText(byId("sentence"), quiet ? "" : visibleName(outcome.sentence ?? ""));
  }

  #images(files) {
    const made = files.filter((file) => file.change !== "unchanged" && isPicture(file) && fileHref(file));
    const box = byId("images");
    box.replaceChildren(...made.slice(0, IMAGES_MAX).map(figureOf));
    if (made.length > IMAGES_MAX) box.append(el("p", {}, `${made.length - IMAGES_MAX} more images are in the list of files.`));
    box.hidden = made.length === 0;
  }

  // In one column the output is below the editor, out of sight.
  #reveal() {
    const card = byId("verdict").closest(".card");
    if (card.getBoundingClientRect().top > innerHeight * 0.6) {
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      card.scrollIntoView({ block: "start", behavior: calm ? "instant" : "smooth" });
    }
  }
}

function showStream(name, text = "", truncated = false, total = undefined) {
  byId(name).textContent = visibleOutput(text);
  byId(`${name}-block`).hidden = text === "" && !truncated;
  const note = byId(`${name}-note`);
  note.classList.toggle("cut", truncated);
  const size = Number.isFinite(total) ? bytes(total) : "";
  note.textContent = truncated ? `Cut short: the program printed ${size || "more than is kept"}` : size;
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

function describeFigures({ cpuMs, memoryPeakBytes }) {
  const parts = [];
  if (Number.isFinite(cpuMs)) parts.push(`${duration(cpuMs)} of CPU`);
  if (Number.isFinite(memoryPeakBytes)) parts.push(`${bytes(memoryPeakBytes)} of memory at the most`);
  return parts.join(" · ");
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`Copied ${plural(text.length, "character")}.`);
  } catch {
    announce("The browser did not allow copying.");
  }
}
