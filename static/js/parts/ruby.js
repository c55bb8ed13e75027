// A part that is loaded when a program in this language is edited.
import "../kit.js";
export { ruby } from "@codemirror/legacy-modes/mode/ruby";
