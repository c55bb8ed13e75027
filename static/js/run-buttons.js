// Owns the buttons and keys that start and stop a run, and those that save the program.
import { byId } from "./dom.js";
import { page } from "./page.js";

const APPLE = /Mac|iPhone|iPad/.test(navigator.platform);
const FIELDS = "#editor, input, select, textarea, dialog[open]";

export function startButtons({ onRun, onStop, onSave }) {
  const save = byId("save-program");
  const run = byId("run");
  const stops = [byId("stop"), byId("stop-here")];
  byId("run-key").textContent = APPLE ? "⌘ ↵" : "Ctrl ↵";
  run.title = `Run the program (${APPLE ? "Command" : "Ctrl"}+Enter)`;
  run.setAttribute("aria-keyshortcuts", APPLE ? "Meta+Enter" : "Control+Enter");
  run.addEventListener("click", onRun);
  save.title = `Save the program as a file of this conversation (${APPLE ? "Command" : "Ctrl"}+S)`;
  save.setAttribute("aria-keyshortcuts", APPLE ? "Meta+S" : "Control+S");
  save.addEventListener("click", onSave);
  for (const stop of stops) {
    stop.title = `Stop the program (${APPLE ? "Command" : "Ctrl"}+. or Esc; with Vim keys, Esc outside the editor)`;
    stop.setAttribute("aria-keyshortcuts", APPLE ? "Meta+. Escape" : "Control+. Escape");
    stop.addEventListener("click", async () => {
      for (const each of stops) setStopping(each, true);
      await onStop();
      for (const each of stops) setStopping(each, false);
    });
  }
  document.addEventListener("keydown", (event) => {
    const action = actionOf(event);
    if (!action) return;
    event.preventDefault();
    if (action === "run") onRun();
    else if (action === "save") onSave();
    else if (page.state === "running") byId("stop").click();
  });
  page.onState((state) => show(state, run, stops));
}

// The editor handles Ctrl+Enter, Ctrl+S and Escape itself; Escape leaves other fields alone, except an empty line for
// input.
function actionOf(event) {
  const inEditor = event.target.closest?.("#editor");
  const mod = event.ctrlKey || event.metaKey;
  if (document.querySelector("dialog[open]")) return null;
  if (event.key === "Enter" && mod && !inEditor) return "run";
  if (event.key === "s" && mod && !event.shiftKey && !inEditor) return "save";
  if (event.key === "." && mod) return "stop";
  if (event.key === "Escape" && page.state === "running" && isFree(event.target)) return "stop";
  return null;
}

function isFree(target) {
  return !target.closest?.(FIELDS) || (target.id === "input-field" && !target.value);
}

function show(state, run, stops) {
  const running = state === "running";
  // Not `disabled` while running: a disabled button loses the keyboard focus.
  run.disabled = state !== "ready" && !running;
  run.setAttribute("aria-disabled", String(state !== "ready"));
  byId("save-program").disabled = state !== "ready" && !running;
  byId("run-label").textContent = running ? "Running" : "Run";
  const focused = stops.includes(document.activeElement);
  for (const stop of stops) {
    setStopping(stop, false);
    stop.hidden = !running;
  }
  if (focused && !running) run.focus();
}

function setStopping(stop, stopping) {
  stop.setAttribute("aria-disabled", String(stopping));
  stop.querySelector("span").textContent = stopping ? "Stopping…" : "Stop";
}
