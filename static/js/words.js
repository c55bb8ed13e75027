// Owns how a line of arguments becomes words, as in a shell: quotes keep words together, a backslash takes the next
// character as it is. Nothing is expanded.

/** The words of a line; throws an Error with a sentence when a quote is not closed. */
export function wordsOf(line) {
  const words = [];
  const pattern = /\s*((?:"(?:[^"\\]|\\[^])*"|'[^']*'|\\[^]|[^\s"'\\])+)/gy;
  let end = 0;
  for (const [all, word] of line.matchAll(pattern)) {
    end += all.length;
    words.push(
      word.replace(/"((?:[^"\\]|\\[^])*)"|'([^']*)'|\\([^])/g, (_, double, single, escaped) =>
        double === undefined ? (single ?? escaped) : double.replace(/\\(["\\$`])/g, "$1"),
      ),
    );
  }
  if (line.slice(end).trim()) throw new Error("A quote is not closed: close it, or write \\ before it.");
  return words;
}

/** A line that has these words. */
export function lineOf(words) {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");
}
