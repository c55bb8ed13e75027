// Owns the colour theme. Without a choice the page follows the system; a choice equal to the system's is not stored.
import { byId } from "./dom.js";
import { store } from "./store.js";

const system = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

/** `changed(dark)` is called at once and after every change. */
export function startTheme(changed) {
  const button = byId("theme");
  const show = () => {
    const dark = isDark();
    const label = dark ? "Switch to light" : "Switch to dark";
    button.setAttribute("aria-label", label);
    button.title = label;
    button.dataset.showing = dark ? "dark" : "light";
    changed(dark);
  };
  button.addEventListener("click", () => {
    const wanted = isDark() ? "light" : "dark";
    if ((wanted === "dark") === system.matches) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = wanted;
    store.choose("theme", document.documentElement.dataset.theme ?? null);
    show();
  });
  system.addEventListener("change", show);
  show();
}
