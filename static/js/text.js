// Owns the display of foreign text and of numbers. Control characters become visible signs, so that escape sequences
// and direction overrides have no effect.

// Control characters except tab and newline, and the characters that reorder the text around them.
const ACTS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;
// In a name also every other invisible character, and every space except plain ones inside it.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]|(?! )\p{Zs}|^ | $/gu;

function picture(character) {
  const code = character.codePointAt(0);
  if (code <= 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** Makes text inert; tabs and newlines stay. */
export function visibleText(text) {
  return text.replace(ACTS, picture);
}

/** Makes a name inert and keeps it on one line. */
export function visibleName(name) {
  return name.replace(HIDDEN, picture);
}

/** Whether a name contains characters that are not visible as they are. */
export function isDeceptive(name) {
  return visibleName(name) !== name;
}

/** A count of bytes in the largest fitting binary unit. */
export function bytes(count) {
  if (!Number.isFinite(count)) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function duration(milliseconds) {
  if (!Number.isFinite(milliseconds)) return "";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(milliseconds < 10_000 ? 2 : 1)} s`;
  return `${Math.floor(milliseconds / 60_000)} min ${Math.floor((milliseconds % 60_000) / 1000)} s`;
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

/** How long ago a time was, in the largest fitting unit. */
export function ago(time, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(time)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return "just now";
  const units = [
    ["minute", 60],
    ["hour", 3600],
    ["day", 86_400],
    ["month", 2_629_800],
    ["year", 31_557_600],
  ];
  const [unit, length] = units.findLast(([, length]) => seconds >= length);
  return `${plural(Math.floor(seconds / length), unit)} ago`;
}
