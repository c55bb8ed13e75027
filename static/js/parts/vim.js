// A part that is loaded when Vim's keys are chosen.
import "../kit.js";
export { vim } from "@replit/codemirror-vim";
