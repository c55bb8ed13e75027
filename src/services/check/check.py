# Formats and checks a Python program by ruff, and prints one JSON object. Standard input has the name of the program's
# file, a line feed, and the program, which is read and never executed.
import json
import subprocess
import sys

PROBLEMS_MAX = 100
MESSAGE_CHARS_MAX = 500
# The status that says that a tool crashed, which a program does to it that is nested too deeply.
CRASHED = 3
# What is wrong in any program. The rest of ruff's rules are about taste, or about what the formatter does.
RULES = "E4,E7,E9,F"


def ruff(command, options, program):
    words = ["ruff", command, "--isolated", "--no-cache", "--stdin-filename", name, *options, "-"]
    ended = subprocess.run(words, input=program, capture_output=True, cwd="/tmp")
    if ended.returncode < 0:
        sys.exit(CRASHED)
    return ended


def problem(found):
    start, end = found["location"], found["end_location"]
    code = found["code"]
    is_syntax = code is None or code == "invalid-syntax"
    first = (start["row"], start["column"])
    last = max(first, (end["row"], end["column"]))
    return {
        "line": first[0],
        "column": first[1],
        "endLine": last[0],
        "endColumn": last[1],
        "rule": "syntax" if is_syntax else code,
        "message": found["message"][:MESSAGE_CHARS_MAX],
        "severity": "error" if is_syntax else "warning",
    }


name, _, code = sys.stdin.buffer.read().partition(b"\n")
name = name.decode()
formatted = ruff("format", [], code)
text = formatted.stdout if formatted.returncode == 0 else None
checked = ruff("check", ["--output-format", "json", "--select", RULES], code if text is None else text)
if checked.returncode not in (0, 1):
    sys.exit(checked.stderr.decode(errors="replace"))
problems = [problem(found) for found in json.loads(checked.stdout)]
if text is None:
    problems = [one for one in problems if one["rule"] == "syntax"]
    if not problems:
        sys.exit(formatted.stderr.decode(errors="replace"))
answer = {"code": None if text is None else text.decode(), "problems": problems[:PROBLEMS_MAX]}
print(json.dumps(answer, ensure_ascii=False))
