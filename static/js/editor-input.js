// Owns one repair of typing: when a selection of several lines is typed over, browsers join the lines by wrapping the rest
// in an element with an inline style, which the content policy blocks and reports. The text is the same either way, since
// CodeMirror draws it anew; here it goes to CodeMirror directly and the browser makes no such element.
import { EditorView } from "../vendor/codemirror.js";

export const typeOverLines = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { state } = view;
    const { from, to } = state.selection.main;
    const oneLine = state.doc.lineAt(from).to >= to;
    if (event.inputType !== "insertText" || !event.data || event.isComposing || view.composing || oneLine) return false;
    const insert = () => state.update(state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
    const handled = state.facet(EditorView.inputHandler).some((handler) => handler(view, from, to, event.data, insert));
    if (!handled) view.dispatch(insert());
    event.preventDefault();
    return true;
  },
});
