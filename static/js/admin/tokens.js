// Owns the views of tokens and of connections, and the dialogs that create a token and show it once.
import { byId, el, showText } from "../dom.js";
import { copy, toast } from "../page.js";
import { ago, plural, visibleName } from "../text.js";
import { Table, act, moment, name, word } from "./table.js";

/** What tokens of clients that signed in begin with; they have a view of their own. */
const CONNECTION = "mcpc_";
/** Among the names of a token's policies, the right to install packages. */
const PACKAGES = "packages";

export class Tokens {
  #api;
  #table;
  #dialog = byId("create-dialog");
  #secretDialog = byId("secret-dialog");

  constructor(api) {
    this.#api = api;
    this.#table = new Table({
      id: "tokens",
      title: "Tokens",
      empty: "There are no tokens except MCP_API_TOKEN, which is not listed.",
      columns: [
        { name: "Name", cell: (token) => name(token.name), kind: "long" },
        { name: "Owner", cell: (token) => name(token.owner), kind: "name" },
        { name: "Begins with", cell: (token) => name(token.prefix), kind: "name" },
        { name: "Scopes", cell: (token) => token.scopes.join(", ") },
        { name: "Limits", cell: limitsOf, kind: "long" },
        { name: "Created", cell: (token) => moment(token.created) },
        { name: "Last used", cell: (token) => (token.lastUsed ? ago(token.lastUsed) : "never"), kind: "nowrap" },
        { name: "State", cell: stateOf },
        { name: "Revoke", cell: (token) => (isValid(token) ? this.#revoke(token) : null), kind: "act" },
      ],
    });
    byId("view-tokens").append(this.#table.element);
    byId("token-new").addEventListener("click", () => this.#api.run(() => this.#open()));
    this.#api.form("create", () => this.#create());
    byId("create-network").addEventListener("change", showPolicies);
    byId("secret-done").addEventListener("click", () => this.#secretDialog.close());
    byId("secret-copy").addEventListener("click", () => this.#copy());
    this.#secretDialog.addEventListener("close", () => {
      byId("secret").value = "";
      byId("secret-word").textContent = "Copy";
      byId("token-new").focus();
    });
  }

  async load() {
    const { tokens } = await this.#api.get("v1/tokens");
    this.#table.show(tokens.filter(({ prefix }) => !prefix.startsWith(CONNECTION)));
  }

  async #open() {
    const asked = ["v1/runners", "v1/owners", "v1/admin/network"].map((path) => this.#api.get(path));
    const [{ runners }, { owners }, { policies }] = await Promise.all(asked);
    if (this.#dialog.open) return;
    const names = new Set([...policies.map((policy) => policy.name), PACKAGES]);
    byId("create-languages").replaceChildren(...runners.map(({ language }) => box("language", language)));
    byId("create-policies").replaceChildren(...[...names].map((policy) => box("network", policy)));
    byId("create-owners").replaceChildren(...owners.map(({ owner }) => el("option", { value: owner })));
    byId("create-form").reset();
    showPolicies();
    showText(byId("create-error"), "");
    this.#dialog.showModal();
    byId("create-name").focus();
  }

  async #create() {
    const chosen = (group) =>
      [...byId("create-form").querySelectorAll(`[name="${group}"]:checked`)].map(({ value }) => value);
    const scopes = chosen("scope");
    if (!scopes.length) throw new Error("Choose at least one permission.");
    const limits = {};
    for (const field of byId("create-form").querySelectorAll("[data-limit]")) {
      if (field.value !== "") limits[field.dataset.limit] = Number(field.value);
    }
    const wanted = { name: byId("create-name").value.trim(), owner: byId("create-owner").value, scopes, limits };
    if (chosen("language").length) wanted.languages = chosen("language");
    if (byId("create-network").checked) wanted.network = chosen("network");
    if (byId("create-expiry").value) wanted.expiresInSeconds = Number(byId("create-expiry").value);
    const { token } = await this.#api.post("v1/tokens", wanted);
    this.#dialog.close();
    byId("secret").value = token;
    this.#secretDialog.showModal();
    byId("secret-copy").focus();
    await this.#api.run(() => this.load(), "load");
  }

  async #copy() {
    const field = byId("secret");
    const isCopied = await copy(field.value, "The token is copied.", field);
    // The notice is behind the dialog. A token that could not be copied is selected.
    byId("secret-word").textContent = isCopied ? "Copied" : "Press Ctrl+C";
  }

  #revoke(token) {
    const shown = visibleName(token.name);
    const text = `${shown} (${token.prefix}…)\nIts streams, programs and sessions end at once.`;
    const question = { title: "Revoke this token?", text, yes: "Revoke" };
    const revoke = () => this.#api.remove(`v1/tokens/${token.id}`);
    const onClick = () => this.#api.confirmed(this, question, revoke, `Revoked ${shown}.`);
    return act({ key: token.id, label: "Revoke", of: shown, symbol: "trash", onClick });
  }
}

export class Connections {
  #api;
  #table;

  constructor(api) {
    this.#api = api;
    this.#table = new Table({
      id: "connections",
      title: "Clients that are signed in",
      empty: "No client is signed in. Clients can sign in only where sign-in is on.",
      columns: [
        { name: "Client", cell: (one) => name(one.name), kind: "long" },
        { name: "Owner", cell: (one) => name(one.owner), kind: "name" },
        { name: "Scopes", cell: (one) => one.scopes.join(", ") },
        { name: "Since", cell: (one) => moment(one.createdAt) },
        { name: "Last used", cell: (one) => (one.lastUsedAt ? ago(one.lastUsedAt) : "never"), kind: "nowrap" },
        { name: "State", cell: (one) => (one.refusedAt ? word("refused", "fail") : word("allowed", "ok")) },
        { name: "Change", cell: (one) => (one.refusedAt ? this.#allow(one) : this.#end(one)), kind: "act" },
      ],
    });
    byId("view-connections").append(this.#table.element);
  }

  async load() {
    const { connections } = await this.#api.get("v1/connections");
    this.#table.show(connections);
  }

  #end(one) {
    const shown = visibleName(one.name);
    const then = one.isSubject ? "Its tokens are refused until you allow it again." : "It has to sign in again.";
    const text = `${shown}\nWhat it opened ends at once. ${then}`;
    const question = { title: "End this connection?", text, yes: "End it" };
    const end = () => this.#api.remove(`v1/connections/${one.id}`);
    const onClick = () => this.#api.confirmed(this, question, end, `Ended the connection of ${shown}.`);
    return act({ key: one.id, label: "End", of: shown, symbol: "close", onClick });
  }

  #allow(one) {
    const shown = visibleName(one.name);
    const onClick = () =>
      this.#api.run(async () => {
        await this.#api.post(`v1/connections/${one.id}/allow`);
        toast(`Allowed ${shown}.`);
        await this.load();
      });
    const button = act({ key: one.id, label: "Allow", of: shown, symbol: "ok", onClick });
    button.classList.remove("danger");
    return button;
  }
}

/** A box of the form that may be chosen, one of a group. */
function box(group, value) {
  const input = el("input", { type: "checkbox", name: group, value });
  return el("label", { class: "check" }, input, ` ${visibleName(value)}`);
}

/** Shows the network policies where some are to be chosen. */
function showPolicies() {
  byId("create-policies").hidden = !byId("create-network").checked;
}

function isValid({ revoked, expires }) {
  return !revoked && !(expires && Date.parse(expires) <= Date.now());
}

function stateOf(token) {
  if (token.revoked) return word("revoked", "fail");
  if (!isValid(token)) return word("expired", "limit");
  if (!token.expires) return word("valid", "ok");
  return el("span", {}, word("valid", "ok"), " until ", moment(token.expires));
}

function limitsOf({ languages, limits, network }) {
  const { runsPerMinute, runsAtOnce, cpuSecondsPerDay, outputBytesPerDay } = limits;
  const parts = [
    languages.length && `only ${languages.map(visibleName).join(", ")}`,
    network && (network.length ? `network: ${network.map(visibleName).join(", ")}` : "no network"),
    runsPerMinute !== undefined && `${plural(runsPerMinute, "program")} a minute`,
    runsAtOnce !== undefined && `${runsAtOnce} at once`,
    cpuSecondsPerDay !== undefined && `${cpuSecondsPerDay} s CPU a day`,
    outputBytesPerDay !== undefined && `${plural(outputBytesPerDay, "byte")} a day`,
  ];
  return parts.filter(Boolean).join(" · ");
}
