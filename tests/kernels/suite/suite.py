"""What jupyter_kernel_test asks of each kernel, in the kernel's own image. The argument is a language.

Left out by name: of ipykernel, history by `range`, which it answers with another number of the session than that by
`tail`; of bash_kernel, standard error, which comes with standard output; of Deno, output and displays, which come after
the idle status in some cells of a hundred (the bridge puts them in order), inspection, which finds nothing, and wrong
code, which it calls complete. What a sample is missing for is reported as skipped: the kernel offers none.

With `--plain` these are tried alone, on the kernel as its makers start it: each must fail there too, once in many."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

from jupyter_kernel_test import IopubWelcomeTests, KernelTests


class Python(KernelTests):
    kernel_name, language_name, file_extension = "python3", "python", ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_execute_result = [{"code": "6 * 7", "result": "42"}]
    code_display_data = [
        {"code": f"from IPython.display import *; display({kind}('test'))", "mime": mime}
        for kind, mime in (("HTML", "text/html"), ("Math", "text/latex"), ("Markdown", "text/markdown"))
    ]
    completion_samples = [{"text": "zi", "matches": {"zip"}}, {"text": "import tokeni", "matches": {"tokenize"}}]
    complete_code_samples = ["1", "print('x')", "def f(x):\n  return 2 * x\n\n\n"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    supported_history_operations, code_history_pattern = ("tail", "search"), "6 ? 7"


class PythonWelcome(IopubWelcomeTests):
    kernel_name, support_iopub_welcome = "python3", True


class Bash(KernelTests):
    kernel_name, language_name, file_extension = "bash", "bash", ".sh"
    code_hello_world = "echo 'hello, world'"
    code_generate_error = "false"
    completion_samples = [{"text": "fgr", "matches": {"fgrep"}}]


class Deno(KernelTests):
    file_extension = ".ts"
    code_generate_error = "throw new Error('x')"
    completion_samples = [{"text": "globalTh", "matches": {"globalThis"}}]
    complete_code_samples = ["1", "let x = 1"]
    incomplete_code_samples = ["function f() {"]


class JavaScript(Deno):
    kernel_name, language_name = "javascript", "typescript"


class TypeScript(Deno):
    kernel_name, language_name = "typescript", "typescript"


class RangeOfHistory(Python):
    supported_history_operations = ("tail", "range")


class BashErrors(Bash):
    code_stderr = "echo test >&2"


class OfDeno:
    code_hello_world, code_stderr = "console.log('hello, world')", "console.error('test')"
    code_execute_result = [{"code": "6 * 7", "result": "42"}]
    code_display_data = [
        {"code": "await Deno.jupyter.display({'text/html': 'test'}, {raw: true})", "mime": "text/html"}
    ]
    code_clear_output = "await Deno.jupyter.broadcast('clear_output', {wait: false})"
    code_inspect_sample = "globalThis"
    invalid_code_samples = ["let = = 1"]


class OfJavaScript(OfDeno, JavaScript):
    pass


class OfTypeScript(OfDeno, TypeScript):
    pass


CASES = {"python": [Python, PythonWelcome], "bash": [Bash], "javascript": [JavaScript], "typescript": [TypeScript]}
OF_DENO = ["execute_stdout", "execute_stderr", "execute_result", "display_data", "clear_output"]
OF_DENO += ["inspect", "is_complete"]
LEFT_OUT = {
    "python": [(RangeOfHistory, "test_history")],
    "bash": [(BashErrors, "test_execute_stderr")],
    "javascript": [(OfJavaScript, f"test_{name}") for name in OF_DENO],
    "typescript": [(OfTypeScript, f"test_{name}") for name in OF_DENO],
}
TRIES = 1000
PYTHON, DENO = ["/opt/venv/bin/python3", "-m"], ["/usr/local/bin/deno", "jupyter", "--kernel", "--conn"]
STARTS = {
    "python": [*PYTHON, "ipykernel_launcher", "-f"],
    "bash": [*PYTHON, "bash_kernel", "-f"],
    "javascript": DENO,
    "typescript": DENO,
}


def start_plainly(language):
    """Has the kernel started as its own installation says, with Deno's colours off."""
    case, _ = LEFT_OUT[language][0]
    folder = pathlib.Path(tempfile.mkdtemp(), "kernels", case.kernel_name)
    folder.mkdir(parents=True)
    spec = {"argv": [*STARTS[language], "{connection_file}"], "display_name": language, "language": language}
    env = {"PS1": "$", "NO_COLOR": "1"}
    folder.joinpath("kernel.json").write_text(json.dumps({**spec, "env": env}))
    os.environ["JUPYTER_PATH"] = str(folder.parent.parent)


def fails(case, test):
    """Whether the test fails, if not at once. Where it never does, it need not be left out."""
    result = unittest.TestResult()
    result.failfast = True
    unittest.TestSuite([case(test) for _ in range(TRIES)]).run(result)
    problems = result.failures + result.errors
    is_failed = bool(problems) and all(isinstance(failed, unittest.TestCase) for failed, _ in problems)
    print(f"{case.__name__}.{test}:", f"fails, in try {result.testsRun}" if is_failed else "is not shown to fail")
    print(*(text for _, text in problems), *(f"skipped: {why}" for _, why in result.skipped[:1]), sep="\n", flush=True)
    return is_failed


def main(language, *options):
    if options == ("--plain",):
        start_plainly(language)
        return all([fails(case, test) for case, test in LEFT_OUT[language]])
    tests = [unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in CASES[language]]
    return unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(tests)).wasSuccessful()


sys.exit(not main(*sys.argv[1:]))
