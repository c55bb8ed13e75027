// Bundles the page into dist/ and collects the licence of every package that went in. What the first paint does not
// need is a chunk of its own, loaded by `import()`. The digest of the sources and of the result goes to dist.digest,
// which a test compares with the files.
//
// One line of style-mod is changed on the way: it uses constructable style sheets in shadow roots only and a <style>
// element in documents, which the page's content policy (style-src 'self') forbids. Here documents get them too. The
// build stops if that line is no longer there, so an update cannot lose the change silently.
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const SHADOW_ONLY = "if (!root.head && root.adoptedStyleSheets && win.CSSStyleSheet)";
const ANY_ROOT = "if (root.adoptedStyleSheets && win.CSSStyleSheet)";

const adoptInDocuments = {
  name: "adopt-in-documents",
  setup(api) {
    api.onLoad({ filter: /style-mod\/src\/style-mod\.js$/ }, async ({ path }) => {
      const source = await readFile(path, "utf8");
      if (!source.includes(SHADOW_ONLY)) throw new Error("style-mod changed: adapt bundle.mjs");
      return { contents: source.replace(SHADOW_ONLY, ANY_ROOT), loader: "js" };
    });
  },
};

rmSync("dist", { recursive: true, force: true });
mkdirSync("dist");
const common = { outdir: "dist", bundle: true, minify: true, target: "es2023", legalComments: "none", write: false };
const parts = await build({
  ...common,
  entryPoints: ["app.js", "app.css"],
  chunkNames: "[name]-[hash]",
  format: "esm",
  splitting: true,
  metafile: true,
  plugins: [adoptInDocuments],
});
const entryPoints = ["js/boot.js", "js/docs.js", "docs.css", "admin.js", "admin.css"];
const others = await build({ ...common, entryPoints, entryNames: "[name]", format: "iife" });

// The server puts a digest into the address of the whole folder, so names without hashes do, and stay the same.
const outputs = [...parts.outputFiles, ...others.outputFiles];
const names = outputs.map(({ path }) => path.slice(path.lastIndexOf("/") + 1));
const plain = new Map();
for (const name of names) {
  const stem = name.replace(/-[A-Z0-9]{8}(?=\.js$)/, "").replace(/\.js$/, "");
  const taken = [...plain.values()].filter((other) => other.startsWith(stem)).length;
  if (name.endsWith(".js")) plain.set(name, `${stem}${taken ? `-${taken + 1}` : ""}.js`);
}
const gone = names.filter((_, at) => !outputs[at].text);
const empty = gone.length ? new RegExp(gone.map((name) => `import"\\./${name}";`).join("|"), "g") : "";
for (const [at, { text }] of outputs.entries()) {
  // The bundler leaves an empty file where only side effects were shared.
  if (!text) continue;
  const renamed = text.replace(empty, "").replace(/(?<=\.\/)[\w-]+\.js(?=")/g, (name) => plain.get(name) ?? name);
  await writeFile(`dist/${plain.get(names[at]) ?? names[at]}`, renamed);
}

const packages = new Set();
for (const input of Object.keys(parts.metafile.inputs)) {
  const name = input.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1];
  if (name) packages.add(name);
}

let licences = "The page contains the packages below. style-mod is changed in one line; see bundle.mjs.\n";
for (const name of [...packages].sort()) {
  const folder = `node_modules/${name}`;
  const { version } = JSON.parse(await readFile(`${folder}/package.json`, "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file || !existsSync(`${folder}/${file}`)) throw new Error(`${name} has no licence file`);
  licences += `\n${"=".repeat(72)}\n${name} ${version}\n${"=".repeat(72)}\n\n`;
  licences += (await readFile(`${folder}/${file}`, "utf8")).trim() + "\n";
}
await writeFile("dist/LICENSES.txt", licences);

// The same sums as in tests/it/bundle.rs: name, zero byte, SHA-256 of the content, in the order of the names.
async function digest(names) {
  const sum = createHash("sha256");
  for (const name of names.sort()) {
    sum.update(`${name}\0`).update(
      createHash("sha256")
        .update(await readFile(name))
        .digest(),
    );
  }
  return sum.digest("hex");
}
const listed = (folder, ending) =>
  readdirSync(folder)
    .filter((name) => ending.test(name))
    .map((name) => (folder === "." ? name : `${folder}/${name}`));
const sources = [
  ...listed(".", /\.(js|css)$/),
  ...listed("js", /\.js$/),
  ...listed("js/parts", /\.js$/),
  ...listed("js/admin", /\.js$/),
  ...listed("css", /\.css$/),
  "bundle.mjs",
  "package-lock.json",
];
await writeFile("dist.digest", `${await digest(sources)}\n${await digest(listed("dist", /./))}\n`);
