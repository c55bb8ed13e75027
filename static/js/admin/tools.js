// Owns the view of tool servers and of questions about their calls, and the dialog that makes a server.
import { byId, el, showText } from "../dom.js";
import { toast } from "../page.js";
import { visibleName } from "../text.js";
import { Table, act, moment, name, word } from "./table.js";

/** Answers, and their colours. */
const ANSWERS = { once: "ok", session: "ok", always: "ok", no: "fail" };

export class Tools {
  #api;
  #servers;
  #questions;
  #dialog = byId("server-dialog");

  constructor(api) {
    this.#api = api;
    this.#questions = new Table({
      id: "approvals",
      title: "Questions about calls",
      empty: "There are no questions from programs.",
      columns: [
        { name: "Asked", cell: ({ askedAt }) => moment(askedAt) },
        { name: "Owner", cell: ({ owner }) => name(owner), kind: "name" },
        { name: "Conversation", cell: ({ conversationId }) => name(conversationId), kind: "name" },
        { name: "Tool", cell: ({ server, tool }) => name(`${server}/${tool}`), kind: "name" },
        { name: "Arguments", cell: ({ arguments: given }) => name(given), kind: "long" },
        { name: "Answer", cell: (question) => standing(question) },
        { name: "By", cell: ({ answeredBy }) => name(answeredBy ?? "") },
        { name: "Change", cell: (question) => this.#answers(question), kind: "act" },
      ],
    });
    this.#servers = new Table({
      id: "tool-servers",
      title: "Tool servers",
      empty: "There are no tool servers, so programs cannot call tools.",
      columns: [
        { name: "Name", cell: (server) => name(server.name), kind: "name" },
        { name: "Address", cell: ({ server }) => name(address(server)), kind: "long" },
        { name: "For", cell: ({ server }) => name((server.owners ?? []).join(", ") || "every owner") },
        { name: "Rules", cell: ({ server }) => name(rules(server.rules ?? [])), kind: "long" },
        { name: "From", cell: ({ isConfigured }) => (isConfigured ? word("settings") : word("this page", "run")) },
        { name: "Change", cell: (server) => this.#actions(server), kind: "act" },
      ],
    });
    byId("view-tools").append(this.#questions.element, this.#servers.element);
    byId("server-new").addEventListener("click", () => this.#open());
    this.#api.form("server", () => this.#save());
  }

  async load() {
    this.#servers.show((await this.#api.get("v1/tool-servers")).servers);
    const { approvals } = await this.#api.get("v1/approvals");
    // Which ones wait is known by the server's clock.
    const open = new Set((await this.#api.get("v1/approvals?open=true")).approvals.map(({ id }) => id));
    this.#questions.show(approvals.map((question) => ({ ...question, isOpen: open.has(question.id) })));
  }

  #answers(question) {
    const of = visibleName(`${question.server}/${question.tool}`);
    const button = (label, symbol, onClick) => act({ key: `${label}-${question.id}`, label, of, symbol, onClick });
    if (question.isOpen) {
      const answer = (text) => () => this.#api.run(() => this.#answer(question, text));
      const allow = button("Allow once", "ok", answer("once"));
      allow.classList.remove("danger");
      return el("span", {}, allow, " ", button("Deny", "fail", answer("no")));
    }
    const stands = ["session", "always"].includes(question.answer) && Date.parse(question.expiresAt) > Date.now();
    return stands ? button("Withdraw", "trash", () => this.#revoke(question)) : null;
  }

  async #answer(question, answer) {
    await this.#api.post(`v1/approvals/${question.id}`, { answer });
    toast(answer === "no" ? "Denied." : "Allowed once.");
    await this.load();
  }

  #revoke(question) {
    const text = `${visibleName(`${question.server}/${question.tool}`)}\nCalls are asked about again.`;
    const asked = { title: "Withdraw this answer?", text, yes: "Withdraw" };
    const revoke = () => this.#api.remove(`v1/approvals/${question.id}`);
    return this.#api.confirmed(this, asked, revoke, "Withdrawn.");
  }

  #actions(server) {
    if (server.isConfigured) return null;
    const [of, key] = [visibleName(server.name), `delete-${server.name}`];
    return act({ key, label: "Delete", of, symbol: "trash", onClick: () => this.#delete(server) });
  }

  #open() {
    byId("server-form").reset();
    showText(byId("server-error"), "");
    this.#dialog.showModal();
    byId("server-name").focus();
  }

  async #save() {
    const text = (id) => byId(`server-${id}`).value.trim();
    const list = (id, between) => text(id).split(between).filter(Boolean);
    const server = { description: text("description"), owners: list("owners", /[\s,]+/) };
    if (text("image")) {
      const command = list("command", /\s*\n\s*/);
      Object.assign(server, { image: text("image"), command, network: list("network", /[\s,]+/) });
      if (text("secret")) server.env = { [text("header") || "TOKEN"]: "{secret}" };
    } else {
      server.url = text("url");
      const header = text("header") || "Authorization";
      const scheme = header.toLowerCase() === "authorization" ? "Bearer " : "";
      if (text("secret")) server.headers = { [header]: `${scheme}{secret}` };
    }
    const rules = text("rules") || "[]";
    try {
      JSON.parse(rules);
    } catch (error) {
      throw new Error(`The rules are not valid JSON: ${error.message}`);
    }
    // The rules are sent as they are written: numbers in their conditions may be longer than JavaScript keeps them.
    const written = `${JSON.stringify(server).slice(0, -1)},"rules":${rules}}`;
    const secret = text("secret") ? `,"secret":${JSON.stringify(text("secret"))}` : "";
    await this.#api.put(`v1/tool-servers/${encodeURIComponent(text("name"))}`, `{"server":${written}${secret}}`);
    this.#dialog.close();
    toast(`${visibleName(text("name"))} holds from the next call on.`);
    await this.#api.run(() => this.load(), "load");
  }

  #delete(server) {
    const shown = visibleName(server.name);
    const text = `${shown}: ${visibleName(address(server.server))}\nCalls of its tools end.`;
    const question = { title: "Delete this tool server?", text, yes: "Delete" };
    const remove = () => this.#api.remove(`v1/tool-servers/${encodeURIComponent(server.name)}`);
    return this.#api.confirmed(this, question, remove, `Deleted ${shown}.`);
  }
}

function standing({ answer, isOpen }) {
  if (isOpen) return word("waits", "run");
  return answer ? word(answer, ANSWERS[answer]) : word("no answer");
}

function address({ url, image, command }) {
  return url || [image && `in ${image}:`, ...(command ?? [])].filter(Boolean).join(" ");
}

function rules(all) {
  return all.map(({ tool, action }) => `${action} ${tool}`).join(", ") || "by the tools' own hints";
}
