// Owns the words for how a run ended. The badge carries the contract's own word in `data-ended` (`error` when the failure
// was ours, `running` while it runs), and `data-exit-code` when there is one.
import { byId, showText } from "./dom.js";
import { visibleName } from "./text.js";

const ICONS = { ok: "ok", fail: "fail", limit: "limit", cancelled: "stopped", error: "limit", running: "clock" };

function kindOf({ ended, exitCode }) {
  if (ended === "exited") return exitCode === 0 ? "ok" : "fail";
  if (ended === "signaled") return "fail";
  if (ended === "cancelled" || ended === "error" || ended === "running") return ended;
  return "limit";
}

function wordsOf({ ended, exitCode, signal }) {
  const words = String(ended).replaceAll("_", " ");
  const detail = ended === "exited" ? exitCode : ended === "signaled" ? signal : undefined;
  return visibleName(`${words[0]?.toUpperCase() ?? ""}${words.slice(1)}${detail === undefined ? "" : ` ${detail}`}`);
}

/** Shows the badge and returns what it says. */
export function showVerdict(outcome) {
  const badge = byId("verdict");
  const text = wordsOf(outcome);
  badge.dataset.ended = outcome.ended;
  badge.dataset.kind = kindOf(outcome);
  if (outcome.exitCode === undefined) delete badge.dataset.exitCode;
  else badge.dataset.exitCode = outcome.exitCode;
  byId("verdict-icon").setAttribute("href", `#i-${ICONS[badge.dataset.kind]}`);
  showText(byId("verdict-text"), text);
  badge.hidden = false;
  return text;
}
