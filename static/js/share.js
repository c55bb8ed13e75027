// Owns links that hold a program: packed into the fragment, which browsers do not send, so nothing is stored anywhere.
import { byId } from "./dom.js";
import { copy, toast } from "./page.js";

const NAME = "program=";
const LINK_CHARS_MAX = 16_000;
// A small link must not become a large program.
const UNPACKED_BYTES_MAX = 1 << 20;

/** `program()` returns `{language, code, args, stdin}`. */
export function startSharing(program) {
  byId("share").addEventListener("click", async () => {
    try {
      const link = await linkTo(program());
      await copy(link, "A link to this program is copied. It opens the program without running it.");
    } catch {
      toast("The program is too long for a link. Upload it as a file instead.");
    }
  });
}

/** The program in the page's address, which is then removed from it; null when there is none. */
export async function programInAddress() {
  if (!location.hash.startsWith(`#${NAME}`)) return null;
  const packed = location.hash.slice(NAME.length + 1);
  history.replaceState(history.state, "", location.pathname + location.search);
  try {
    const { language, code, args, stdin } = JSON.parse(await unpack(packed));
    if (typeof language !== "string" || typeof code !== "string") throw new Error("not a program");
    return { language, code, args: strings(args), stdin: typeof stdin === "string" ? stdin : "" };
  } catch {
    toast("The link's program could not be read. Ask for a new link.");
    return null;
  }
}

async function linkTo(program) {
  const packed = new CompressionStream("deflate-raw");
  const bytes = await pipe(new Blob([JSON.stringify(program)]), packed, LINK_CHARS_MAX);
  const text = btoa(String.fromCharCode(...bytes));
  const url = new URL(location.pathname, location.href);
  url.hash = NAME + text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  if (url.href.length > LINK_CHARS_MAX) throw new Error("too long");
  return url.href;
}

async function unpack(packed) {
  const text = atob(packed.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
  return new TextDecoder("utf-8", { fatal: true }).decode(
    await pipe(new Blob([bytes]), new DecompressionStream("deflate-raw"), UNPACKED_BYTES_MAX),
  );
}

async function pipe(blob, transform, bytesMax) {
  const parts = [];
  let size = 0;
  const reader = blob.stream().pipeThrough(transform).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > bytesMax) {
      reader.cancel().catch(() => {});
      throw new Error("too large");
    }
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function strings(list) {
  return Array.isArray(list) ? list.filter((item) => typeof item === "string") : [];
}
