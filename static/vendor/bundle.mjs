// Bundles entry.js into codemirror.js and collects the licence of every package that went in.
//
// One line of style-mod is changed on the way: it uses constructable style sheets in shadow roots only and a <style>
// element in documents, which the page's content policy (style-src 'self') forbids. Here documents get them too. The
// build stops if that line is no longer there, so an update cannot lose the change silently.
import { readFile, writeFile } from "node:fs/promises";
import { existsSync, readdirSync } from "node:fs";
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

const { metafile } = await build({
  entryPoints: ["entry.js"],
  outfile: "codemirror.js",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  banner: { js: "/* CodeMirror 6 and what it needs, bundled by build.sh; licences in LICENSES.txt */" },
  metafile: true,
  plugins: [adoptInDocuments],
});

const packages = new Set();
for (const input of Object.keys(metafile.inputs)) {
  const name = input.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1];
  if (name) packages.add(name);
}

let licences = "codemirror.js is bundled from the packages below. style-mod is changed in one line; see bundle.mjs.\n";
for (const name of [...packages].sort()) {
  const folder = `node_modules/${name}`;
  const { version } = JSON.parse(await readFile(`${folder}/package.json`, "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file || !existsSync(`${folder}/${file}`)) throw new Error(`${name} has no licence file`);
  licences += `\n${"=".repeat(72)}\n${name} ${version}\n${"=".repeat(72)}\n\n`;
  licences += (await readFile(`${folder}/${file}`, "utf8")).trim() + "\n";
}
await writeFile("LICENSES.txt", licences);
