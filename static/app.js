// Starts the page: builds every part once, connects them, and asks the server for its languages. The parts do not
// import each other; their callbacks meet here.
import { Client } from "./js/client.js";
import { Conversation } from "./js/conversation.js";
import { byId } from "./js/dom.js";
import { Editor } from "./js/editor.js";
import { Elsewhere } from "./js/elsewhere.js";
import { Files } from "./js/files.js";
import { Format } from "./js/format.js";
import { History } from "./js/history.js";
import { InputLine } from "./js/input-line.js";
import { fileNameOf } from "./js/languages.js";
import { Output } from "./js/output.js";
import { ask, hideBanner, page, showBanner, toast } from "./js/page.js";
import { Program } from "./js/program.js";
import { startButtons } from "./js/run-buttons.js";
import { Questions } from "./js/questions.js";
import { Run } from "./js/run.js";
import { programInAddress, startSharing } from "./js/share.js";
import { Session } from "./js/session.js";
import { startSplitters } from "./js/splitters.js";
import { store } from "./js/store.js";
import { startTheme } from "./js/theme.js";
import { visibleName } from "./js/text.js";
import { Token } from "./js/token.js";
import { Uploads } from "./js/upload.js";

const draft = store.draft;
const client = new Client(() => token.value);
const token = new Token({ attempt: connect, forgotten: () => needToken() });
const conversation = new Conversation({
  client,
  onFailure,
  changed: (id) => {
    files.reset();
    session.open();
    run.open(id);
  },
});
const editor = new Editor({
  text: draft?.text ?? "",
  onRun: () => run.start(),
  onSave: saveProgram,
  onFormat: () => format.start(),
  onStop: () => page.state === "running" && Boolean(run.stop()),
  given: () => program.typed,
});
const session = new Session({
  client,
  conversation: () => conversation.id,
  onSwitch: (on) => (program.runsCells = on),
  onFailure,
});
const format = new Format({ client, editor, onFailure });
const program = new Program(editor, draft, (runner) => {
  session.offer(runner);
  format.offer(runner);
});
const questions = new Questions({
  answer: (id, answer) => client.post(`v1/approvals/${id}`, { answer }),
  onFailure,
});
const output = new Output(questions, async (file) => (await client.readFile(conversation.id, file)).blob);
const files = new Files({
  client,
  conversation: () => conversation.id,
  onOpen: openFile,
  onListed: (conversationId, listed) => viewer?.listed(conversationId, listed),
  onFailure,
});
const uploads = new Uploads({
  client,
  conversation: () => conversation.id,
  exists: (name) => files.has(name),
  onDone: () => files.refresh(),
  onFailure,
});
const elsewhere = new Elsewhere({ client, onOpen: (id) => conversation.open(id), onFailure });
const run = new Run({
  client,
  output,
  history: new History((chosen) => run.choose(chosen)),
  input: new InputLine({ client, onTyped: (runId, text) => run.typed(runId, text), onFailure }),
  elsewhere,
  conversation: () => conversation.id,
  request: () => {
    const checked = program.checked();
    return checked && { conversationId: conversation.id, ...checked };
  },
  onShow: (shown) => program.offer(shown),
  begin: (request) => (session.isOn ? session.cell(request) : client.createRun(request)),
  onEnd: (made) => {
    files.showRun(made);
    session.refresh();
  },
  onOther: () => files.refresh(),
  onFailure,
});
const { title } = document;
/** The name under which a program of each language was saved. */
const savedAs = new Map();
let viewer = null;
let skills = null;

startButtons({ onRun: () => run.start(), onStop: () => run.stop(), onSave: saveProgram });
page.onState((state) => (document.title = state === "running" ? `Running – ${title}` : title));
startTheme((dark) => editor.setDark(dark));
startSplitters();
byId("skills").addEventListener("click", openSkills);
addEventListener("beforeunload", (event) => {
  // The program's draft is kept; these would be lost.
  if (viewer?.isChanged || uploads.isBusy) event.preventDefault();
});
startSharing(() => ({ language: program.language, code: editor.text, ...program.given }));
addEventListener("hashchange", () => {
  // In any other state, `connect` opens it when the languages are known.
  if (page.state === "ready" || page.state === "running") openShared();
});
open();

/** Connects with the stored token, or asks for one. */
async function open() {
  const tried = token.value;
  if (!tried) return needToken();
  try {
    await connect(tried);
  } catch (error) {
    if (tried !== token.value) return;
    if (error.needsToken) return needToken("The server no longer accepts the token.");
    page.state = "error";
    showBanner(visibleName(error.message), "Try again", open);
  }
}

/** Asks the server for its languages with this token; throws a ServerError when it refuses. */
async function connect(candidate, signal) {
  const answer = await client.listRunners({ token: candidate, signal });
  // Another one was entered and is used by now. One that is entered is not in use yet, and has a signal.
  if (!signal && candidate !== token.value) return;
  store.useToken(candidate);
  program.setRunners(answer, draft?.language);
  hideBanner();
  if (answer.runners.length) page.state = "ready";
  else {
    page.state = "error";
    showBanner("The server has no runners. Build the images under runners/, then try again.", "Try again", open);
  }
  files.refresh();
  elsewhere.restore();
  run.open(conversation.id);
  byId("skills").hidden = !answer.skills;
  await openShared();
}

/** Puts the program in the page's address into the editor. */
async function openShared() {
  const shared = await programInAddress();
  if (shared) program.replace(shared, "The link's program replaced yours.");
}

/** Shows a file; what that needs is loaded with the first one. */
async function openFile(file, conversationId) {
  try {
    const { Viewer } = await import("./js/parts/viewer.js");
    viewer ??= new Viewer({
      client,
      canUse: (language) => program.offers(language),
      onUse: (used) => {
        program.replace(used, "The file's program replaced yours.");
        editor.focus();
      },
      onSaved: () => files.refresh(),
      onClosed: (file) => files.focus(file),
      onFailure,
    });
    await viewer.open(conversationId, file);
  } catch {
    toast("A part of the page could not be loaded. Reload the page to try again.");
  }
}

/** Stores the program as a file of the conversation. */
async function saveProgram() {
  if (page.state !== "ready" && page.state !== "running") return;
  const { id } = conversation;
  const { language } = program;
  const value = savedAs.get(language) ?? fileNameOf(language);
  const path = await ask({ title: "Save the program as a file", label: "Name", yes: "Save", value });
  if (!path) return;
  savedAs.set(language, path);
  uploads.add([new File([editor.text], path)], id);
}

async function openSkills() {
  try {
    const { Skills } = await import("./js/parts/skills.js");
    skills ??= new Skills({ client, onFailure });
    await skills.open();
  } catch {
    toast("A part of the page could not be loaded. Reload the page to try again.");
  }
}

function needToken(complaint) {
  page.state = "needs-token";
  showBanner("The server needs its access token before anything can run.", "Enter token", () => token.ask());
  token.ask(complaint);
}

function onFailure(error) {
  if (error.needsToken) needToken("The server no longer accepts the token.");
}
