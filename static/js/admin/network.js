// Owns the view of network policies and the dialog that makes or changes one.
import { byId, el, showText } from "../dom.js";
import { toast } from "../page.js";
import { bytes, visibleName } from "../text.js";
import { Table, act, moment, name, word } from "./table.js";

/** Fields of a policy that are lists, one item a line or separated by commas. */
const LISTS = ["hosts", "ports", "addresses", "languages", "methods", "paths"];
/** Fields that are numbers; 0 is no limit. */
const NUMBERS = ["requestsPerMinute", "bytesPerMinute"];

/** What became of a connection, and its colour. */
const DECISIONS = { allowed: "ok", refused: "limit", failed: "fail" };
/** How many connections are shown. */
const SHOWN = 100;

export class Network {
  #api;
  #table;
  #decisions = new Table({
    id: "network-decisions",
    title: "Newest connections",
    empty: "There were no connections since the server started.",
    columns: [
      { name: "At", cell: ({ at }) => moment(at) },
      { name: "Owner", cell: ({ owner }) => name(owner), kind: "name" },
      { name: "Conversation", cell: ({ conversationId }) => name(conversationId), kind: "name" },
      { name: "Host", cell: ({ target }) => name(target), kind: "long" },
      { name: "Decision", cell: ({ decision }) => word(decision, DECISIONS[decision]) },
      { name: "Why", cell: ({ message }) => name(message), kind: "long" },
      { name: "Received", cell: ({ receivedBytes }) => bytes(receivedBytes), kind: "nowrap" },
      { name: "Sent", cell: ({ sentBytes }) => bytes(sentBytes), kind: "nowrap" },
    ],
  });
  #dialog = byId("policy-dialog");

  constructor(api) {
    this.#api = api;
    this.#table = new Table({
      id: "policies",
      title: "Network policies",
      empty: "There are no policies, so programs have no network.",
      columns: [
        { name: "Name", cell: (policy) => name(policy.name), kind: "name" },
        { name: "Hosts", cell: (policy) => name(policy.hosts.join(", ")), kind: "long" },
        { name: "Ports", cell: (policy) => policy.ports.join(", ") || "80, 443" },
        { name: "Non-public addresses", cell: (policy) => name(policy.addresses.join(", ")) },
        { name: "Requests", cell: (policy) => name(rulesOf(policy)), kind: "long" },
        { name: "Languages", cell: (policy) => name(policy.languages.join(", ") || "all") },
        { name: "For", cell: (policy) => (policy.everyToken ? "every token" : "tokens that name it") },
        { name: "From", cell: (policy) => (policy.isConfigured ? word("settings") : word("this page", "run")) },
        { name: "Change", cell: (policy) => this.#actions(policy), kind: "act" },
      ],
    });
    byId("view-network").append(this.#table.element, this.#decisions.element);
    byId("policy-new").addEventListener("click", () => this.#open());
    this.#api.form("policy", () => this.#save());
  }

  async load() {
    const { policies } = await this.#api.get("v1/admin/network");
    this.#table.show(policies.map(({ policy, ...rest }) => ({ ...policy, ...rest })));
    const { decisions } = await this.#api.get(`v1/admin/network-decisions?limit=${SHOWN}`);
    this.#decisions.show(decisions);
  }

  #actions(policy) {
    if (policy.isConfigured) return null;
    const of = visibleName(policy.name);
    const button = (label, symbol, onClick) => act({ key: `${symbol}-${policy.name}`, label, of, symbol, onClick });
    const edit = button("Edit", "edit", () => this.#open(policy));
    edit.classList.remove("danger");
    return el("span", {}, edit, " ", button("Delete", "trash", () => this.#delete(policy)));
  }

  #open(policy) {
    byId("policy-form").reset();
    showText(byId("policy-error"), "");
    byId("policy-title").textContent = policy ? `Change ${visibleName(policy.name)}` : "Create a network policy";
    byId("policy-name").readOnly = Boolean(policy);
    if (policy) {
      byId("policy-name").value = policy.name;
      for (const list of LISTS) byId(`policy-${list}`).value = policy[list].join(list === "hosts" ? "\n" : ", ");
      for (const number of NUMBERS) byId(`policy-${number}`).value = policy[number] || "";
      byId("policy-every").checked = policy.everyToken;
    }
    this.#dialog.showModal();
    byId(policy ? "policy-hosts" : "policy-name").focus();
  }

  async #save() {
    const items = (list) => byId(`policy-${list}`).value.split(/[\s,]+/).filter(Boolean);
    const wanted = Object.fromEntries(LISTS.map((list) => [list, items(list)]));
    wanted.ports = wanted.ports.map(Number);
    if (!wanted.ports.every((port) => Number.isInteger(port) && port > 0 && port < 65_536)) {
      throw new Error("A port is a number from 1 to 65535.");
    }
    for (const number of NUMBERS) wanted[number] = Number(byId(`policy-${number}`).value);
    wanted.everyToken = byId("policy-every").checked;
    const policyName = byId("policy-name").value.trim().toLowerCase();
    await this.#api.put(`v1/admin/network/${encodeURIComponent(policyName)}`, JSON.stringify(wanted));
    this.#dialog.close();
    toast(`${visibleName(policyName)} holds from the next connection on.`);
    await this.#api.run(() => this.load(), "load");
  }

  #delete(policy) {
    const shown = visibleName(policy.name);
    const text = `${shown}: ${visibleName(policy.hosts.join(", "))}\nPrograms make no more connections by it.`;
    const question = { title: "Delete this network policy?", text, yes: "Delete" };
    const remove = () => this.#api.remove(`v1/admin/network/${encodeURIComponent(policy.name)}`);
    return this.#api.confirmed(this, question, remove, `Deleted ${shown}.`);
  }
}

function rulesOf({ methods, paths, requestsPerMinute, bytesPerMinute }) {
  const parts = [[...methods, ...paths].join(" ") || "all"];
  if (requestsPerMinute) parts.push(`${requestsPerMinute} a minute`);
  if (bytesPerMinute) parts.push(`${bytes(bytesPerMinute)} a minute`);
  return parts.join(", ");
}
