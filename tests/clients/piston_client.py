"""Runs programs through Piston's interface with a Piston client. Arguments: base address, Authorization header."""

import sys

from ultra_piston import File, PistonClient
from ultra_piston.errors import BadRequestError

piston = PistonClient(base_url=sys.argv[1], api_key=sys.argv[2], rate_limit=0, app_name="test")

runtimes = {runtime.language: runtime for runtime in piston.get_runtimes()}
assert {"python", "bash", "javascript", "typescript"} <= set(runtimes), runtimes
assert runtimes["python"].version.count(".") == 2, runtimes["python"]
assert all(package.installed for package in piston.get_packages())

output = piston.post_execute(
    language="python",
    version=runtimes["python"].version,
    file=File(name="main.py", content="import sys\nprint(sys.argv[1:], sys.stdin.read())\n"),
    args=["a", "b c"],
    stdin="typed",
)
assert (output.run.stdout, output.run.code, output.run.signal) == ("['a', 'b c'] typed\n", 0, None), output

failed = piston.post_execute(language="js", version="*", file=File(content="process.exit(7)"))
assert failed.run.code == 7 and failed.language == "javascript", failed

slow = piston.post_execute(language="bash", version="*", file=File(content="sleep 60"), run_timeout=1000)
assert (slow.run.code, slow.run.signal) == (None, "SIGKILL"), slow

try:
    piston.post_execute(language="cobol", version="*", file=File(content="x"))
except BadRequestError:
    pass
else:
    raise AssertionError("an unknown runtime is refused")
print("ok")
