"""The Python kernel of sessions: ipykernel in this interpreter.

Without an argument it is the program of an interpreter that stood by: it makes the connection file and starts the
bridge, which speaks to the server on this process's standard input and output (../README.md, protocol 2). With a
connection file as its argument a bridge has started it.
"""

import os
import sys

_OPTIONS = [
    "--IPKernelApp.quiet=True",  # else its banner comes as output
    "--IPKernelApp.parent_handle=1",  # else it explains how to reach it
    "--HistoryManager.hist_file=:memory:",
    "--InteractiveShell.colors=nocolor",  # but for tracebacks, see _app
    "--IPCompleter.use_jedi=False",  # its first answer takes seconds; the names that live are known without it
]
_FOLDER = "/tmp/.kernel"
_NEIGHBOURS = "/data"
_F_SETSIG = 10
_PIECE = 128 << 10


def _start_the_bridge(file):
    """Starts the bridge; returns its process, which leaves at once: the bridge itself is no child of this process.

    The kernel is killed when the bridge is gone: the last writer of a pipe is the bridge, and its end is a signal that
    needs no thread and no turn of the interpreter."""
    import fcntl
    import json
    import secrets
    import subprocess

    kernel = {"transport": "ipc", "ip": _FOLDER, "signature_scheme": "hmac-sha256", "key": secrets.token_hex(16)}
    ports = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
    kernel.update({port: number for number, port in enumerate(ports, 1)})
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as connection:
        json.dump(kernel, connection)
    lives, held = os.pipe()
    bridge = subprocess.Popen(["/sandbox-bridge", "--adopt", file], pass_fds=(held,))
    os.close(held)
    fcntl.fcntl(lives, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lives, _F_SETSIG, 9)
    fcntl.fcntl(lives, fcntl.F_SETFL, fcntl.fcntl(lives, fcntl.F_GETFL) | os.O_ASYNC)
    # The frames are the bridge's from here on.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return bridge


def _write_in_pieces():
    """A long text leaves in pieces. As one message it would take several times its length of memory here."""
    from ipykernel.iostream import OutStream

    write = OutStream.write

    def write_in_pieces(self, string):
        if not isinstance(string, str) or len(string) <= _PIECE:
            return write(self, string)
        for at in range(0, len(string), _PIECE):
            write(self, string[at : at + _PIECE])
            self.flush()
        return len(string)

    OutStream.write = write_in_pieces


def _app(file):
    import sandbox_hints
    from ipykernel.kernelapp import IPKernelApp

    def hint(result):
        error = getattr(result, "error_in_exec", None)  # a cell that was interrupted has no result
        if isinstance(error, ImportError):
            sandbox_hints.after(error)

    _write_in_pieces()
    app = IPKernelApp.instance()
    app.initialize(["-f", file, *_OPTIONS])
    app.shell.events.register("post_run_cell", hint)
    # For people. The server takes the colours out of the text that models read, but not out of what `?` shows.
    for shown in (app.shell.InteractiveTB, app.shell.SyntaxTB):
        shown.set_theme_name("neutral")
    return app


def main():
    # Files of the program must not stand in for the kernel's own modules.
    neighbours = [folder for folder in sys.path if folder == _NEIGHBOURS]
    sys.path[:] = [folder for folder in sys.path if folder != _NEIGHBOURS]
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ["IPYTHONDIR"] = "/tmp/.ipython"
    if len(sys.argv) > 1:
        bridge, file = None, sys.argv[1]
    else:
        # An interrupt reaches this group: the kernel and the commands that a cell runs.
        os.setpgid(0, 0)
        file = _FOLDER + ".json"
        bridge = _start_the_bridge(file)
    sys.argv[:] = ["ipykernel_launcher"]
    app = _app(file)
    sys.path[:0] = neighbours or [_NEIGHBOURS]
    if bridge is not None:
        bridge.wait()
    app.start()


main()
