"""E2B's SDK, unmodified. Arguments: base URL, token, `fake` or `real`. Fails on any unexpected result."""

import os
import sys

base, token, kind = sys.argv[1:]
os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = base
os.environ["E2B_API_KEY"] = token

from e2b import CommandExitException, NotFoundException, SandboxQuery
from e2b_code_interpreter import Sandbox

REAL = kind == "real"
programs = {
    "set": ("set x 41", "x = 41"),
    "get": ("get x", "print(x)"),
    "fail": ("raise ValueError no", "raise ValueError('no')"),
    "html": ("show text/html <b>hello</b>", "from IPython.display import HTML; HTML('<b>hello</b>')"),
    "figure": ("figure", "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"),
    "three": ("print out\nstderr err\nexit 3", "echo out; echo err >&2; exit 3"),
    "seen": ("print made", "cat /home/user/sub/a.txt"),
}
text = {name: both[REAL] for name, both in programs.items()}

sandbox = Sandbox.create(timeout=600, metadata={"for": "a test & more"})
assert sandbox.is_running()
assert sandbox.get_info().metadata == {"for": "a test & more"}
again = Sandbox.connect(sandbox.sandbox_id)
sandbox.set_timeout(900)

sandbox.run_code(text["set"])
seen = []
execution = again.run_code(text["get"], on_stdout=lambda message: seen.append(message.line))
assert "".join(execution.logs.stdout) == "".join(seen) == "41\n", execution
assert execution.error is None and execution.execution_count == 2, execution
failed = sandbox.run_code(text["fail"])
assert (failed.error.name, failed.error.value) == ("ValueError", "no"), failed
assert "ValueError" in failed.error.traceback, failed
assert "<b>hello</b>" in sandbox.run_code(text["html"]).results[0].html
assert sandbox.run_code(text["figure"]).results[0].png, "a picture"
if REAL:
    last = sandbox.run_code("import json\n{'a': 1}")
    assert last.text == "{'a': 1}" and last.results[0].is_main_result, last

context = sandbox.create_code_context(language="python")
assert [one.id for one in sandbox.list_code_contexts()] == [context.id]
assert "".join(sandbox.run_code(text["get"], context=context).logs.stdout) == "41\n"
sandbox.restart_code_context(context)
assert sandbox.run_code(text["get"], context=context).error.name == "NameError"
sandbox.remove_code_context(context)
assert sandbox.list_code_contexts() == []

made = sandbox.files.write("/home/user/sub/a.txt", "made\n")
assert (made.path, made.name) == ("/home/user/sub/a.txt", "a.txt"), made
many = [{"path": "b.txt", "data": "b"}, {"path": "/home/user/c.bin", "data": b"\x00\xff"}]
assert len(sandbox.files.write_files(many)) == 2
sandbox.files.write("d.txt", "streamed", use_octet_stream=True)
assert sandbox.files.read("d.txt") == "streamed"
assert sandbox.files.read("sub/a.txt") == "made\n"
assert bytes(sandbox.files.read("c.bin", format="bytes")) == b"\x00\xff"
listed = {entry.name: entry.type.value for entry in sandbox.files.list("/home/user")}
assert {"sub": "dir", "b.txt": "file", "c.bin": "file"}.items() <= listed.items(), listed
assert [entry.path for entry in sandbox.files.list("sub")] == ["/home/user/sub/a.txt"]
assert sandbox.files.exists("sub") and not sandbox.files.exists("none")
assert sandbox.files.get_info("b.txt").size == 1
sandbox.files.remove("b.txt")
assert not sandbox.files.exists("b.txt")
for path in ["none.txt", "b.txt"]:
    try:
        sandbox.files.read(path)
        raise SystemExit(f"{path} is there")
    except NotFoundException:
        pass
moved = sandbox.files.rename("d.txt", "new/d.txt")
assert (moved.path, moved.size) == ("/home/user/new/d.txt", 8), moved
assert sandbox.files.read("new/d.txt") == "streamed"
assert sandbox.files.make_dir("new/folder") and not sandbox.files.make_dir("new/folder")
if REAL:
    assert sandbox.commands.run("pwd", cwd="/home/user/sub").stdout.strip() == "/data/sub"

assert sandbox.commands.run(text["seen"]).stdout == "made\n"
try:
    sandbox.commands.run(text["three"])
    raise SystemExit("the command failed")
except CommandExitException as error:
    assert (error.exit_code, error.stdout, error.stderr) == (3, "out\n", "err\n"), error

other = Sandbox.create(metadata={"for": "other"})
wanted = Sandbox.list(query=SandboxQuery(metadata={"for": "a test & more"})).next_items()
assert [one.sandbox_id for one in wanted] == [sandbox.sandbox_id], wanted
found = Sandbox.list()
ids = [one.sandbox_id for one in found.next_items()]
assert {sandbox.sandbox_id, other.sandbox_id} <= set(ids) and not found.has_next, ids
assert not other.files.exists("sub"), "each has files of its own"
assert other.kill() and not other.kill()
assert not other.is_running()
assert sandbox.kill()
