#!/usr/bin/env python3
"""Runs every example of examples/ with its own files, as models/drive.py runs clients: against the server, with a
stand-in for the model. Of the files only addresses and paths are replaced; the token is in the environment.

examples.py [NAME...]   all examples, or these only
  SERVER=<path>         the server's binary, instead of dist/mcp-sandbox-server
  KEEP=<folder>         keep what the examples printed and sent there"""

import collections
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlparse

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "models"))

from drive import ALONE, AT_ONCE, BINARY, CLIENT_S_MAX, TOKEN, Server, execute
from install import CLIENTS, FOLDER, ROOT, install, left
from report import faults, judge, strings
from stand_in import CODE, DONE, StandIn

EXAMPLES = ROOT / "examples"
ADDRESS, CHECKOUT, HOME = "http://localhost:8080/mcp", "/home/you/mcp-code-sandbox", "/home/you"
# The examples have to bring a program's failure to the model and go on.
FAILING = 'raise SystemExit("FAILURE-" + "OF-THE-PROGRAM")'
FAILURE = "FAILURE-OF-THE-PROGRAM"


class Wrong(Exception):
    """What is wrong with an example, in a sentence."""


def need(condition, sentence):
    if not condition:
        raise Wrong(sentence)


class Stage:
    """An example in a folder of its own."""

    def __init__(self, name, server, model, folder):
        self.name, self.server, self.model = name, server, model
        self.folder, self.home = folder / name, folder / f"{name}-home"
        shutil.copytree(EXAMPLES / name, self.folder)
        self.home.mkdir()
        self.readme, self.printed = self.text("README.md").replace(" \\\n  ", " "), ""

    def text(self, path):
        return (EXAMPLES / self.name / path).read_text()

    def replace(self, path, *pairs):
        """Puts what is true here in place of addresses and paths; each has to be there."""
        text = self.text(path)
        for old, new in pairs:
            need(old in text, f"{path} has no {old}")
            text = text.replace(old, str(new))
        (self.folder / path).write_text(text)

    def run(self, client, command):
        """Runs a command of README.md with the client's own environment of clients.toml."""
        need(command in self.readme, f"README.md does not have the command that is tested: {command}")
        model = f"{self.model.url}/{self.name}"
        for path, text in CLIENTS[client].get("files", {}).items():
            (self.home / path).parent.mkdir(exist_ok=True)
            (self.home / path).write_text(text)
        variables = {key: value.replace("MODEL", model) for key, value in CLIENTS[client].get("env", {}).items()}
        # Gemini CLI would ask a model which model to ask.
        variables |= {"HOME": str(self.home), "MCP_API_TOKEN": TOKEN, "GEMINI_MODEL": "gemini-2.5-pro"}
        self.printed, ended, _ = execute(client, command, self.folder, self.model, variables)
        return ended

    def requests(self):
        return self.model.requests.get(self.name, [])


def of_client(client, file, command, script=None):
    """An example of a client of clients.toml, with the assertions about that client: what reached the model is the list
    of all tools, the text that the program printed, its picture as an image, and a link that leads to its file."""

    def check(stage):
        stage.replace(file, (ADDRESS, stage.server.base + "/mcp"))
        if script:
            stage.model.scripts[stage.name] = script
        ended = stage.run(client, command)
        row = judge(stage.name, stage.server, stage.model)
        wrong = faults(client, row, ended)
        need(not wrong, f"of what should reach the model, {'; '.join(wrong)}")
        if script:
            sent = json.dumps([request["result"] for request in stage.requests()])
            need(FAILURE in sent, "the error of the first program did not reach the model")
            need(DONE in stage.printed, "the model's last answer was not printed")

    return check


def agent(client):
    """An example of a library: its program has the client's snippet, and goes on after a program that fails."""
    run = [("sandbox_run_code", {"conversationId": f"{client}-agent", "language": "python", "code": code})
           for code in [FAILING, CODE]]
    check = of_client(client, "agent.py", "python agent.py", run)

    def with_snippet(stage):
        text = stage.text("agent.py").replace('f"Bearer {TOKEN}"', '"Bearer TOKEN"')
        for part in CLIENTS[client]["snippet"].strip().split("\n\n"):
            need(part in text, f"agent.py differs from clients.toml, which has:\n{part}")
        check(stage)

    return with_snippet


def configured(client, file, command, options=""):
    """An example of a program whose own command, that of clients.toml with more options, writes the example's file."""
    check = of_client(client, file, command)
    snippet = CLIENTS[client]["snippet"].replace(" --scope user", "").replace('"', "'")
    add = snippet.replace("TOKEN", "${MCP_API_TOKEN}").replace("mcp add", f"mcp add --scope project{options}").strip()

    def as_written(stage):
        need(add in stage.readme, f"README.md does not have the command that writes {file}: {add}")
        written = stage.home / "written"
        written.mkdir()
        _, ended, _ = execute(client, add, written, stage.model, {"HOME": str(stage.home / "writer")})
        need(ended == "exit status 0" and (written / file).exists(), f"the client's command does not write {file}")
        need(json.loads((written / file).read_text()) == json.loads(stage.text(file)),
             f"{file} is not what the client's own command writes: {(written / file).read_text()}")
        check(stage)

    return as_written


def claude_desktop(stage):
    """The configured command, started by the SDK, serves the tools; a program reads the folder and cannot change it."""
    reports, root = stage.home / "reports", stage.home / "sandboxes"
    reports.mkdir()
    (reports / "may.csv").write_text("month,sum\nmay,41\n")
    # Every user could write, so that it is the mount that refuses it.
    (reports / "may.csv").chmod(0o666)
    stage.replace("claude_desktop_config.json", (f"{CHECKOUT}/dist/mcp-sandbox-server", Path(BINARY).absolute()),
                  (f"{HOME}/Documents/reports", reports))
    programs = ["print('SUM', sum(int(line.split(',')[1]) for line in list(open('/mnt/reports/may.csv'))[1:]));"
                "open('copy.csv', 'w').write(open('/mnt/reports/may.csv').read())",
                "open('/mnt/reports/may.csv', 'a').write('changed')"]
    command = [FOLDER / "openai-agents/venv/bin/python", HERE / "models/over_stdio.py",
               stage.folder / "claude_desktop_config.json", *programs]
    # As root the server keeps files below /var by default.
    environment = os.environ | {"SANDBOX_ROOT": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=left(CLIENT_S_MAX), cwd=stage.home,
                          env=environment)
    stage.printed = done.stdout + done.stderr
    need(done.returncode == 0, "the SDK could not use the configured command")
    got = json.loads(done.stdout)
    tools = {tool["name"]: tool["description"] for tool in got["tools"]}
    # A link to upload a file by HTTP is of no use over stdio, so that tool is not listed there.
    wanted = [name for name in stage.server.listed if name != "sandbox_upload_url"]
    need(list(tools) == wanted, f"the client got {', '.join(tools)} of the tools")
    need("/mnt/reports" in tools["sandbox_run_code"], "the description of run_code does not name the mounted folder")
    read, change = ("\n".join(text for _, text in strings(one["content"])) for one in got["answers"])
    need("SUM 41" in read, f"the program did not read the file of the mounted folder, but answered: {read}")
    links = [unquote(urlparse(link).path) for link in re.findall(r"file://[^\s)>\"]+copy\.csv", read)]
    need(links and Path(links[0]).read_text() == "month,sum\nmay,41\n", f"no link leads to the copy: {read}")
    need("Read-only file system" in change, f"a program can change the mounted folder: {change}")


# What a model would write for the question of code-mode/agent.py.
LOOP = """from collections import Counter
from mcptools.orders.get_order import run

owed = Counter()
for number in range(1, 201):
    order = run(number=number)
    if not order.paid:
        owed[order.customer] += order.cents
print("owes most:", owed.most_common(1))
"""
CALLS = 200
OFFERED = ["sandbox_search_tools", "sandbox_get_tool_source", "sandbox_run_code"]


def code_mode(stage):
    """Of 200 answers of a tool server none reaches the model; what the program printed does."""
    for request in re.findall(r"^curl .*$", stage.readme, re.MULTILINE):
        command = request.replace(ADDRESS.removesuffix("/mcp"), stage.server.base)
        environment = ALONE | {"MCP_API_TOKEN": TOKEN, "PATH": os.environ["PATH"]}
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=stage.folder, env=environment)
        need(done.returncode == 0, f"a request of README.md is refused: {done.stderr}")
    stage.model.scripts[stage.name] = [
        (OFFERED[0], {"query": "order"}),
        (OFFERED[1], {"server": "orders", "tool": "get_order"}),
        (OFFERED[2], {"conversationId": "code-mode", "language": "python", "code": LOOP}),
    ]
    stage.replace("agent.py", (ADDRESS, stage.server.base + "/mcp"))
    ended = stage.run("openai-agents", "python agent.py")
    asked = urllib.request.Request(stage.server.base + "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    metrics = urllib.request.urlopen(asked).read().decode()
    need(ended == "exit status 0", f"its end is {ended!r}, not 'exit status 0'")
    need(stage.requests()[0]["tools"] == OFFERED, f"the model was offered {stage.requests()[0]['tools']}")
    results = [json.dumps(request["result"]) for request in stage.requests()]
    need(len(results) == 4, f"the model was asked {len(results)} times, not 4")
    for what, sent, text in [("the tool that was found", results[1], "mcptools.orders.get_order"),
                             ("the source of the tool", results[2], "customer"),
                             ("what the program printed", results[3], f"owes most: {owed_most()}")]:
        need(text in sent, f"{what} did not reach the model ({text}), but {sent}")
    context = json.dumps(stage.requests()[-1]["body"])
    need("Reference 0" not in context, "answers of the tool reached the model")
    calls = [int(float(line.split()[-1])) for line in metrics.splitlines()
             if line.startswith("sandbox_tool_calls_total{") and 'answered"' in line]
    need(calls == [CALLS], f"the tool was called {calls} times, not {CALLS}")
    need(LOOP in stage.readme, "README.md does not have the program that the stand-in runs")
    need(DONE in stage.printed, "the model's last answer was not printed")


def owed_most():
    owed = collections.Counter()
    for number in range(1, CALLS + 1):
        if number % 3 == 0:
            owed[["Ada", "Ben", "Cleo", "Dan"][number % 4]] += number * 137 % 10_000
    return owed.most_common(1)


# For each example its check, and the client of clients.toml whose packages it needs.
SINE = "Draw the sine of x from 0 to 10"
CLAUDE = f'claude -p "{SINE}" --allowedTools mcp__sandbox'
GEMINI = f'GEMINI_CLI_TRUST_WORKSPACE=true gemini -p "{SINE}"'
CHECKS = {
    "claude-desktop": (claude_desktop, "openai-agents"),
    "claude-code": (configured("claude-code", ".mcp.json", CLAUDE), "claude-code"),
    "gemini-cli": (configured("gemini-cli", ".gemini/settings.json", GEMINI, " --trust"), "gemini-cli"),
    "openai-agents": (agent("openai-agents"), "openai-agents"),
    "langgraph": (agent("langchain"), "langchain"),
    "code-mode": (code_mode, "openai-agents"),
}

# A tool server gives every client more tools, so these come after those whose tools are counted.
ADDING = {"code-mode"}


def perform(name, server, model, folder):
    """Returns the sentence that says what is wrong, or none, what was printed, and the seconds that it took."""
    began, stage = time.monotonic(), None
    try:
        stage = Stage(name, server, model, folder)
        CHECKS[name][0](stage)
        wrong = None
    except Wrong as error:
        wrong = str(error)
    except (Exception, SystemExit) as error:
        wrong = f"its check could not end: {error!r}"
    return wrong, stage.printed if stage else "", time.monotonic() - began


def check_pages():
    """Each folder has a check and a row of the table, and each link of the pages leads to a file."""
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    if odd := folders ^ set(CHECKS):
        raise SystemExit(f"each folder of examples/ needs a check here, and each check a folder: {', '.join(odd)}")
    pages = EXAMPLES.glob("**/README.md")
    links = {page: re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()) for page in pages}
    for folder in sorted(folders):
        if f"{folder}/README.md" not in links[EXAMPLES / "README.md"]:
            raise SystemExit(f"examples/README.md does not name {folder}")
    for page, target in ((page, target) for page, targets in links.items() for target in targets):
        if not (page.parent / target).exists():
            raise SystemExit(f"{page.relative_to(ROOT)} links to {target}, which is not there")


def main(names):
    check_pages()
    if unknown := set(names) - set(CHECKS):
        raise SystemExit(f"there is no example {', '.join(sorted(unknown))}")
    names = names or list(CHECKS)
    install({CHECKS[name][1] for name in names})
    failed, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="examples-") as folder, Server(Path(folder)) as server:
        model, folder = StandIn(), Path(folder)
        # Before an example adds to them.
        server.listed = server.tools()
        jobs = {}
        for group in [set(names) - ADDING, set(names) & ADDING]:
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                jobs |= {name: pool.submit(perform, name, server, model, folder) for name in names if name in group}
        for name, job in jobs.items():
            wrong, printed, took = job.result()
            print(f"{'FAILED' if wrong else 'ok':6}  {name:14} {took:3.0f} s  {wrong or ''}".rstrip(), flush=True)
            if "KEEP" in os.environ:
                Path(os.environ["KEEP"], name + ".json").write_text(json.dumps(model.requests.get(name), indent=1))
                Path(os.environ["KEEP"], name + ".txt").write_text(printed)
            if wrong:
                failed.append(f"examples/{name}: {wrong}")
                print("  it printed:\n" + "\n".join("    " + line for line in printed.splitlines()[-30:]))
    print(f"hosts that were refused: {', '.join(sorted(model.outside)) or 'none'}")
    print(f"{len(names)} examples in {time.monotonic() - began:.0f} s")
    if failed:
        raise SystemExit("\n".join(failed))


main(sys.argv[1:])
