// Owns the edges between panes: dragged, moved with the arrow keys, set back by a double click. The sizes are kept.
import { byId } from "./dom.js";
import { store } from "./store.js";

const LEAST = 20;
const MOST = 80;
const STEP = 4;

export function startSplitters() {
  start({ id: "split-columns", name: "columns", host: byId("main"), horizontal: true, initial: 52 });
  start({ id: "split-rows", name: "rows", host: document.querySelector(".results"), horizontal: false, initial: 62 });
}

// The size is the share of the first pane, in hundredths.
function start({ id, name, host, horizontal, initial }) {
  const edge = byId(id);
  const property = `--${name}`;
  const set = (share, keep) => {
    const size = Math.round(Math.min(Math.max(share, LEAST), MOST) * 10) / 10;
    document.documentElement.style.setProperty(property, size);
    edge.setAttribute("aria-valuenow", Math.round(size));
    if (keep) store.choose(name, String(size));
  };
  const reset = () => {
    document.documentElement.style.removeProperty(property);
    edge.setAttribute("aria-valuenow", initial);
    store.choose(name, null);
  };
  edge.setAttribute("aria-valuemin", LEAST);
  edge.setAttribute("aria-valuemax", MOST);
  edge.setAttribute("aria-valuenow", initial);
  edge.title = "Drag, or use the arrow keys; double-click to reset";
  const kept = Number(store.choice(name));
  if (kept) set(kept, false);
  edge.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    edge.setPointerCapture(event.pointerId);
    edge.focus();
  });
  edge.addEventListener("pointermove", (event) => {
    if (!edge.hasPointerCapture(event.pointerId)) return;
    const box = host.getBoundingClientRect();
    set(
      horizontal ? ((event.clientX - box.left) / box.width) * 100 : ((event.clientY - box.top) / box.height) * 100,
      true,
    );
  });
  edge.addEventListener("dblclick", reset);
  edge.addEventListener("keydown", (event) => {
    const now = Number(edge.getAttribute("aria-valuenow"));
    const [less, more] = horizontal ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
    const to = { [less]: now - STEP, [more]: now + STEP, Home: LEAST, End: MOST }[event.key];
    if (event.key === "Enter") reset();
    else if (to !== undefined) set(to, true);
    else return;
    event.preventDefault();
  });
}
