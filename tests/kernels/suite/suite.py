"""What jupyter_kernel_test asks of each kernel, in the kernel's own image. The argument is a language.

Left out by name: of ipykernel, history by `range` and `search`, which it keeps in memory here; of bash_kernel, standard
error, which comes with standard output; of Deno, output, which comes after the idle status in some cells of a
hundred (the bridge puts it in order). What a sample is missing for is reported as skipped: the kernel offers none."""

import sys
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
    supported_history_operations = ("tail",)


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


CASES = {"python": [Python, PythonWelcome], "bash": [Bash], "javascript": [JavaScript], "typescript": [TypeScript]}
tests = [unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in CASES[sys.argv[1]]]
done = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(tests))
sys.exit(not done.wasSuccessful())
