// Owns the page's one state, the banner, the toast and the live region. The state is written to
// <html data-state="loading|ready|running|needs-token|error">, where style sheets and tests read it:
// `error` means that the page cannot work at all; a run that fails leaves it `ready`.
import { byId } from "./dom.js";

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

/** Says something to people who hear the page. */
export function announce(text) {
  byId("live").textContent = text;
}

/** A line across the page that stays until `hideBanner`, with one thing to do about it. */
export function showBanner(text, label, action) {
  byId("banner-text").textContent = text;
  const button = byId("banner-action");
  button.textContent = label;
  button.onclick = action;
  byId("banner").hidden = false;
}

export function hideBanner() {
  byId("banner").hidden = true;
}

/** A short note that goes away by itself; with an action it is also reachable by keyboard until then. */
export function toast(text, label, action) {
  clearTimeout(toastTimer);
  const box = byId("toast");
  const button = byId("toast-action");
  byId("toast-text").textContent = text;
  button.hidden = !label;
  button.textContent = label ?? "";
  button.onclick = () => {
    box.hidden = true;
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
