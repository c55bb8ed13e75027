// A part that is loaded when a program in this language is edited.
import "../kit.js";
export { javascript } from "@codemirror/lang-javascript";
