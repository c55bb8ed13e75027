// Owns the page's state, the banner, the toast, the live regions, the questions and copying. The state is written to
// <html data-state="loading|ready|running|needs-token|error">, where style sheets and tests read it:
// `error` means that the page cannot work at all; a run that fails leaves it `ready`.
import { byId, el } from "./dom.js";

const TOAST_MS = 6000;
let toastTimer = 0;
const listeners = new Set();

export const page = {
  get state() {
    return document.documentElement.dataset.state;
  },
  set state(value) {
    document.documentElement.dataset.state = value;
    for (const listener of listeners) listener(value);
  },
  onState(listener) {
    listeners.add(listener);
  },
};

// A modal dialog makes everything outside it inert, so each has a live region of its own.
for (const dialog of document.querySelectorAll("dialog")) {
  const region = dialog.appendChild(el("div", { class: "sr-only", role: "status" }));
  dialog.addEventListener("close", () => (region.textContent = ""));
}

/** Announces a text to users of a screen reader. */
export function announce(text) {
  for (const region of document.querySelectorAll("#live, dialog[open] > [role=status]")) region.textContent = text;
}

/** A line across the page that stays until `hideBanner`, with one action. */
export function showBanner(text, label, action) {
  byId("banner-text").textContent = text;
  const button = byId("banner-action");
  button.textContent = label;
  button.onclick = action;
  byId("banner").hidden = false;
}

export function hideBanner() {
  hide(byId("banner"));
}

// The focus is not lost with what is hidden.
function hide(box) {
  if (box.contains(document.activeElement)) byId("main").focus({ preventScroll: true });
  box.hidden = true;
}

/** A note that disappears after some seconds, but not while it has the pointer or the keyboard focus. */
export function toast(text, label, action) {
  clearTimeout(toastTimer);
  const box = byId("toast");
  const button = byId("toast-action");
  byId("toast-text").textContent = text;
  if (label) button.hidden = false;
  else hide(button);
  button.textContent = label ?? "";
  button.onclick = () => {
    hide(box);
    action?.();
  };
  box.hidden = false;
  announce(text);
  const leave = () => {
    if (box.matches(":focus-within, :hover")) toastTimer = setTimeout(leave, TOAST_MS);
    else box.hidden = true;
  };
  toastTimer = setTimeout(leave, TOAST_MS);
}

/**
 * Copies a text and says `done`, or that the browser refused it; resolves to whether it is copied. `field` is one that
 * shows the text: it is selected where the text cannot be copied otherwise.
 */
export async function copy(text, done, field) {
  let isCopied;
  try {
    await navigator.clipboard.writeText(text);
    isCopied = true;
  } catch {
    // A page that came over plain HTTP from another machine has no clipboard, and may copy what is selected.
    isCopied = field ? copySelected(field) : copyUnseen(text);
  }
  toast(isCopied ? done : "The browser did not allow copying.");
  return isCopied;
}

function copySelected(field) {
  field.focus({ preventScroll: true });
  field.select();
  return document.execCommand("copy");
}

function copyUnseen(text) {
  const focused = document.activeElement;
  const field = document.body.appendChild(el("textarea", { class: "sr-only", readonly: true }));
  field.value = text;
  const isCopied = copySelected(field);
  field.remove();
  focused?.focus({ preventScroll: true });
  return isCopied;
}

/**
 * Calls `close()` in place of the browser where it would close a dialog by itself, as on Escape. It closes one all the
 * same when Escape is pressed again and again with no other key: that one is opened again first.
 */
export function closesBy(dialog, close) {
  let isForced = false;
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    isForced = !event.defaultPrevented;
    if (!isForced) close();
  });
  dialog.addEventListener("close", () => {
    if (!isForced) return;
    isForced = false;
    dialog.showModal();
    close();
  });
}

let answered = Promise.resolve();

// One question at a time: there is one dialog for all, and the next question waits for the answer.
function inTurn(show) {
  const answer = answered.then(show);
  answered = answer;
  return answer;
}

/** Asks before something that cannot be undone; resolves to true when the user agrees, false on Escape and Cancel. */
export function confirmAction(question) {
  return inTurn(() => showConfirm(question));
}

/** Asks for a text; resolves to it, trimmed, or to null on Escape and Cancel. */
export function ask(question) {
  return inTurn(() => showAsk(question));
}

function showConfirm({ title, text, yes }) {
  const dialog = byId("confirm-dialog");
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  byId("confirm-yes").onclick = () => dialog.close("yes");
  byId("confirm-no").onclick = () => dialog.close("no");
  dialog.returnValue = "no";
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

function showAsk({ title, label, yes, value }) {
  const dialog = byId("ask-dialog");
  const input = byId("ask-input");
  byId("ask-title").textContent = title;
  byId("ask-label").textContent = label;
  byId("ask-yes").textContent = yes;
  byId("ask-no").onclick = () => dialog.close("no");
  byId("ask-form").onsubmit = (event) => {
    event.preventDefault();
    if (input.value.trim()) dialog.close("yes");
  };
  input.value = value;
  dialog.returnValue = "no";
  dialog.showModal();
  input.focus();
  // The name without its ending is what is usually changed.
  const [start, dot] = [value.lastIndexOf("/") + 1, value.lastIndexOf(".")];
  input.setSelectionRange(start, dot > start ? dot : value.length);
  return new Promise((resolve) => {
    const done = () => resolve(dialog.returnValue === "yes" ? input.value.trim() : null);
    dialog.addEventListener("close", done, { once: true });
  });
}
