// Owns the output panel: verdict, sentence, both streams, images, figures. It is told of a run in steps and keeps nothing.
import { byId, el, showText } from "./dom.js";
import { fileHref, isPicture } from "./links.js";
import { announce } from "./page.js";
import { store } from "./store.js";
import { Stream } from "./stream.js";
import { bytes, duration, visibleName } from "./text.js";
import { showVerdict } from "./verdict.js";

const IMAGES_MAX = 24;

export class Output {
  #stdout = new Stream("stdout");
  #stderr = new Stream("stderr");

  constructor() {
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
    for (const id of ["output-empty", "sentence", "images", "figures"]) byId(id).hidden = true;
    byId("images").replaceChildren();
    this.#stdout.clear();
    this.#stderr.clear();
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
    this.#stdout.show(result.stdout, result.stdoutTruncated, figures.stdoutBytes);
    this.#stderr.show(result.stderr, result.stderrTruncated, figures.stderrBytes);
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
