"""The kernel of browser sessions: Python's, with a browser that was started before it.

Started ahead of its program (BROWSER_CONTROL_FD, see ../README.md, protocol 1) it starts the browser and waits. A
session then finds the browser open; a program gets a plain interpreter of its own. With a connection file as its
argument a bridge has started it. Nothing of /data is read before the session begins: the browser's only page is empty.
"""

import asyncio
import contextlib
import os
import sys

from sandbox_warm import Control

_PROGRAM = "/tmp/main.py"
_KERNEL = "/opt/runner/kernel.py"
_NEIGHBOURS = "/data"


def _is_session():
    with open(_PROGRAM, "rb") as program, open(_KERNEL, "rb") as kernel:
        return program.read() == kernel.read()


def _become_the_program(has_input, arguments):
    with contextlib.suppress(ChildProcessError):
        os.wait()  # for the driver of the browser, which was killed: it is no child of the program
    if not has_input:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    os.execv(sys.executable, [sys.executable, "-P", _PROGRAM, *map(os.fsdecode, arguments)])


def _start(loop):
    import sandbox_browser

    loop.run_until_complete(sandbox_browser.BROWSER.start())
    return sandbox_browser.BROWSER


def _wait(control, browser):
    """Returns when a session begins; a program takes this process."""
    control.say(b"w")
    has_input, arguments, variables = control.request()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    if not _is_session():
        browser.kill()
        _become_the_program(has_input, arguments)


def main():
    # Files of the conversation must not stand in for modules.
    sys.path[:] = [folder for folder in sys.path if folder != _NEIGHBOURS]
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    control = os.environ.pop("BROWSER_CONTROL_FD", None)
    if control is not None:
        control = Control(int(control))
        control.say(b"u")
    browser = _start(loop)
    from ipykernel.kernelapp import IPKernelApp

    # The kernel's own program finds this instance, and so its cells find the names.
    kernel = IPKernelApp.instance(user_ns=browser.names())
    if control is not None:
        _wait(control, browser)
        if browser.distrusts():
            loop.run_until_complete(browser.restart())
            kernel.user_ns = browser.names()
    with open(_KERNEL) as program:
        code = compile(program.read(), _KERNEL, "exec")
    exec(code, {"__name__": "__main__", "__file__": _KERNEL})


main()
