// Owns the words for a run's state and outcome. The badge has the outcome's `ended` in `data-ended` (`error` when the
// server failed; `starting`, `queued` and `running` before the end), and `data-exit-code` when there is one.
import { byId, showText } from "./dom.js";
import { visibleName } from "./text.js";

const ICONS = {
  ok: "ok",
  fail: "fail",
  limit: "limit",
  cancelled: "stopped",
  error: "limit",
  queued: "clock",
  starting: "clock",
  running: "clock",
};

function kindOf({ ended, exitCode }) {
  if (ended === "exited") return exitCode === 0 ? "ok" : "fail";
  if (ended === "signaled") return "fail";
  return Object.hasOwn(ICONS, ended) ? ended : "limit";
}

function wordsOf({ ended, exitCode, signal, position }) {
  if (ended === "queued") return position > 1 ? `Waiting, number ${position} in line` : "Waiting, next in line";
  const words = String(ended).replaceAll("_", " ");
  const detail = ended === "exited" ? exitCode : ended === "signaled" ? signal : undefined;
  return visibleName(`${words[0]?.toUpperCase() ?? ""}${words.slice(1)}${detail === undefined ? "" : ` ${detail}`}`);
}

/** The state of a run in the form of `/v1`, in the shape of an outcome. */
export function standing({ state, position, outcome, error }) {
  if (outcome) return outcome;
  if (error || state === "finished") return { ended: "error" };
  if (state === "running") return { ended: "running" };
  return position ? { ended: "queued", position } : { ended: "starting" };
}

/** What a badge shows for an outcome. */
export function describe(outcome) {
  const kind = kindOf(outcome);
  return { kind, icon: ICONS[kind], text: wordsOf(outcome) };
}

/** Shows the badge and returns its text. */
export function showVerdict(outcome) {
  const badge = byId("verdict");
  const { kind, icon, text } = describe(outcome);
  badge.dataset.ended = outcome.ended;
  badge.dataset.kind = kind;
  if (outcome.exitCode === undefined) delete badge.dataset.exitCode;
  else badge.dataset.exitCode = outcome.exitCode;
  byId("verdict-icon").setAttribute("href", `#i-${icon}`);
  showText(byId("verdict-text"), text);
  badge.hidden = false;
  return text;
}
