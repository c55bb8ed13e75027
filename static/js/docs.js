// Owns the API page: reads openapi.json and shows it. All text is inserted as text nodes.
import { byId, el } from "./dom.js";

const METHODS = ["get", "post", "put", "delete"];
const DEPTH_MAX = 5;

let schemas = {};

/** A schema with its reference resolved, and the name of the reference. */
function resolve(schema) {
  const name = schema?.$ref?.split("/").pop();
  return name ? [schemas[name] ?? {}, name] : [schema ?? {}, null];
}

function kindOf(schema) {
  const [real, name] = resolve(schema);
  if (name) return name;
  const either = real.oneOf ?? real.anyOf;
  if (either) return [...new Set(either.map(kindOf))].join(" or ");
  if (real.enum) return real.enum.map((word) => JSON.stringify(word)).join(" · ");
  const type = [real.type ?? "any"].flat().join(" or ");
  return type === "array" ? `list of ${kindOf(real.items)}` : type;
}

function boundsOf(schema) {
  const [real] = resolve(schema);
  const words = {
    minimum: "at least",
    maximum: "at most",
    minLength: "min. characters:",
    maxLength: "max. characters:",
    maxItems: "max. items:",
    default: "default",
  };
  return Object.entries(words)
    .filter(([key]) => real[key] !== undefined)
    .map(([key, word]) => `${word} ${real[key]}`)
    .join(", ");
}

/** The members of an object, of a list's items, or of each alternative. */
function details(schema, depth) {
  const [real, name] = resolve(schema);
  if (depth > DEPTH_MAX) return null;
  if (real.enum) return name ? el("p", { class: "kind" }, kindOf(real)) : null;
  if (real.type === "array") return details(real.items, depth);
  const parts = [...(real.allOf ?? []), ...(real.oneOf ?? []), ...(real.anyOf ?? [])]
    .map((part) => details(part, depth))
    .filter(Boolean);
  const list = real.properties ? members(real, depth) : null;
  if (!list && parts.length === 0) return null;
  return el("div", { class: "answers" }, list, ...parts);
}

function members(schema, depth) {
  const list = el("dl", { class: "members" });
  for (const [name, member] of Object.entries(schema.properties)) {
    list.append(
      ...memberRow(
        name,
        member,
        (schema.required ?? []).includes(name),
        member.description ?? resolve(member)[0].description,
        depth,
      ),
    );
  }
  return list;
}

function memberRow(name, schema, must, description, depth) {
  const inner = details(schema, depth + 1);
  const bounds = boundsOf(schema);
  return [
    el("dt", {}, name, must ? el("span", { class: "must" }, " required") : null),
    el(
      "dd",
      {},
      el("div", { class: "kind" }, bounds ? `${kindOf(schema)} (${bounds})` : kindOf(schema)),
      description ? el("div", {}, description) : null,
      inner ? el("details", {}, el("summary", {}, "Members"), inner) : null,
    ),
  ];
}

function curl(method, path, operation) {
  const ofSkill = path.replace("skills/{name}", "skills/my-skill")
    .replace("my-skill/files/{path}", "my-skill/files/SKILL.md");
  const named = ofSkill.replace("{conversationId}", "demo").replace("{path}", "hello.txt").replace("{runId}", "$RUN_ID")
    .replace("{owner}", "default")
    .replace("{sessionId}", "$SESSION_ID").replace("{language}", "python").replace("{name}", "json")
    .replace("{tokenId}", "$TOKEN_ID").replace("{connectionId}", "$CONNECTION_ID")
    .replace("{id}", "$APPROVAL_ID").replace("{server}", "github").replace("{tool}", "list_issues");
  // The page may be below a path prefix.
  const root = new URL(".", location.href).href.replace(/\/$/, "");
  const lines = [
    `curl${method === "get" ? "" : ` -X ${method.toUpperCase()}`} "${root}${named}"`,
    `  -H "Authorization: Bearer $MCP_API_TOKEN"`,
  ];
  const kinds = Object.keys(operation.requestBody?.content ?? {});
  const kind = kinds.find(one => one.includes("tar") || one.includes("zip")) ?? kinds[0];
  if (kind) lines.push(`  -H "Content-Type: ${kind}"`);
  if (kind === "application/json") {
    const [body] = resolve(operation.requestBody.content[kind].schema);
    lines.push(`  -d '${JSON.stringify(example(body))}'`);
  } else if (kind) {
    const file = kind.includes("tar") ? "@archive.tar" : kind.includes("zip") ? "@my-skill.zip" : "Hello";
    lines.push(`  --data-binary ${file}`);
  }
  const [answer] = Object.keys(operation.responses["200"]?.content ?? {});
  if (answer === "application/x-tar") lines.push("  -o archive.tar");
  return lines.join(" \\\n");
}

function example(body) {
  const known = {
    language: "python",
    code: 'print("Hello!")',
    version: "*",
    files: [{ content: 'print("Hello!")' }],
    server: { url: "https://mcp.example.com/mcp" },
  };
  return Object.fromEntries((body.required ?? []).map((name) => [
    name,
    known[name] ?? body.properties[name].example ?? resolve(body.properties[name])[0].enum?.[0] ?? "",
  ]));
}

function operationCard(method, path, operation) {
  const card = el(
    "section",
    { class: "card", id: operation.operationId },
    el("h3", {}, operation.summary ?? operation.operationId),
    el(
      "div",
      { class: "route" },
      el("span", { class: `method ${method}` }, method.toUpperCase()),
      el("span", {}, path),
    ),
    operation.description ? el("p", { class: "about" }, operation.description) : null,
  );
  if (operation.parameters?.length) {
    const list = el("dl", { class: "members" });
    for (const one of operation.parameters) {
      list.append(...memberRow(one.name, one.schema, one.required, `${one.description ?? ""} (${one.in})`, 0));
    }
    card.append(el("h4", {}, "Parameters"), list);
  }
  for (const [kind, content] of Object.entries(operation.requestBody?.content ?? {})) {
    card.append(
      el("h4", {}, "Body"),
      el("div", { class: "kind" }, kind),
      details(content.schema, 0) ?? el("p", {}, operation.requestBody.description ?? "Any bytes."),
    );
  }
  card.append(
    el("h4", {}, "Responses"),
    answers(operation.responses),
    el("h4", {}, "Try it"),
    el("pre", {}, el("code", {}, curl(method, path, operation))),
  );
  return card;
}

function answers(responses) {
  const list = el("div", { class: "answers" });
  for (const [status, response] of Object.entries(responses)) {
    const [kind, content] = Object.entries(response.content ?? {})[0] ?? [];
    const inner = content ? details(content.schema, 0) : null;
    list.append(
      el(
        "div",
        {},
        el("span", { class: "status" }, status === "default" ? "other" : status),
        ` ${response.description} `,
        kind ? el("span", { class: "kind" }, kind) : null,
        inner ? el("details", {}, el("summary", {}, kindOf(content.schema)), inner) : null,
      ),
    );
  }
  return list;
}

function show(spec) {
  schemas = spec.components?.schemas ?? {};
  const content = byId("content");
  const contents = byId("contents");
  content.replaceChildren(
    el("h1", {}, `${spec.info.title} API`),
    el("p", { class: "about" }, spec.info.description),
    el(
      "p",
      { class: "about" },
      "Each request needs the header “Authorization: Bearer” with the server's token. Errors are problem details " +
        "(RFC 9457): programs decide on “code”, people read “detail”.",
    ),
  );
  for (const tag of spec.tags ?? []) {
    const cards = [];
    for (const [path, item] of Object.entries(spec.paths)) {
      for (const method of METHODS.filter((method) => item[method]?.tags?.includes(tag.name))) {
        cards.push([item[method], operationCard(method, path, item[method])]);
      }
    }
    if (cards.length === 0) continue;
    contents.append(
      el("h2", {}, tag.name),
      ...cards.map(([operation]) =>
        el("a", { href: `#${operation.operationId}` }, operation.summary.replace(/\.$/, "")),
      ),
    );
    content.append(
      el("h2", {}, tag.name),
      el("p", { class: "about" }, tag.description),
      ...cards.map(([, card]) => card),
    );
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

async function load() {
  try {
    const answer = await fetch("openapi.json");
    if (!answer.ok) throw new Error(`openapi.json: ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    byId("content").replaceChildren(
      el("p", { class: "placeholder", role: "alert" }, `The API description could not be read: ${error.message}`),
    );
  }
  byId("content").setAttribute("aria-busy", "false");
}

load();
