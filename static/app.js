// Starts the page: builds every part once, connects them, and asks the server for its languages. The parts do not
// import each other; their callbacks meet here.
import { Client } from "./js/client.js";
import { Conversation } from "./js/conversation.js";
import { Editor } from "./js/editor.js";
import { Files } from "./js/files.js";
import { History } from "./js/history.js";
import { InputLine } from "./js/input-line.js";
import { Output } from "./js/output.js";
import { hideBanner, page, showBanner } from "./js/page.js";
import { Program } from "./js/program.js";
import { startButtons } from "./js/run-buttons.js";
import { Run } from "./js/run.js";
import { store } from "./js/store.js";
import { startTheme } from "./js/theme.js";
import { visibleName } from "./js/text.js";
import { Token } from "./js/token.js";
import { Uploads } from "./js/upload.js";

const draft = store.draft;
const client = new Client(() => token.value);
const token = new Token({ attempt: connect, forgotten: () => needToken() });
const conversation = new Conversation(() => {
  files.reset();
  run.open();
});
const editor = new Editor({ text: draft?.text ?? "", onRun: () => run.start() });
const program = new Program(editor);
const output = new Output();
const files = new Files({ client, conversation: () => conversation.id, onFailure });
const uploads = new Uploads({ client, conversation: () => conversation.id, onDone: () => files.refresh(), onFailure });
const run = new Run({
  client,
  output,
  history: new History((chosen) => run.choose(chosen)),
  input: new InputLine({ client, onTyped: (runId, text) => run.typed(runId, text), onFailure }),
  request: () => ({
    conversationId: conversation.id,
    language: program.language,
    code: editor.text,
    takesInput: program.takesInput,
  }),
  onShow: (runId) => program.offer(store.programOf(runId)),
  onEnd: (made) => files.showRun(made),
  onFailure,
});

startButtons({ onRun: () => run.start(), onStop: () => run.stop() });
startTheme((dark) => editor.setDark(dark));
open();

/** Connects with the stored token, or asks for one. */
async function open() {
  if (!token.value) return needToken();
  try {
    await connect(token.value);
  } catch (error) {
    if (error.needsToken) return needToken("The server no longer accepts the token.");
    page.state = "error";
    showBanner(visibleName(error.message), "Try again", open);
  }
}

/** Asks the server for its languages with this token; throws a ServerError when it refuses. */
async function connect(candidate) {
  const runners = await client.listRunners({ token: candidate });
  store.token = candidate;
  program.setRunners(runners, draft?.language);
  hideBanner();
  if (runners.length) page.state = "ready";
  else {
    page.state = "error";
    showBanner("The server has no runner. Build the images under runners/, then try again.", "Try again", open);
  }
  files.refresh();
  run.open();
}

function needToken(complaint) {
  page.state = "needs-token";
  showBanner("The server needs its access token before anything can run.", "Enter token", () => token.ask());
  token.ask(complaint);
}

function onFailure(error) {
  if (error.needsToken) needToken("The server no longer accepts the token.");
}
