// Owns the one question the page asks before it does something that cannot be undone.
import { byId } from "./dom.js";

/** Resolves to true when the user agrees; Escape and Cancel are no. */
export function confirmAction({ title, text, yes }) {
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
