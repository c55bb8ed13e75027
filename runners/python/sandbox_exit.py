"""The end of an interpreter that loaded modules before its program.

Loaded by sandbox_warm, which removes it from sys.modules.

When a program has ended, Python calls the handlers of `atexit`, frees the program's objects, then the modules, then
what is in `sys`, and only then its own types, names and memory. No code of a program runs in that last part, and with
the modules that are loaded it takes longer than most programs. So an object that is freed as the last one in `sys`
ends the process.
"""

import atexit
import gc
import os
import sys

_NAME = "sandbox exit"  # no program can name it by accident
_OF_EVERY_MAIN = ("__name__", "__spec__", "__loader__", "__builtins__")


class Exit:
    """What is done when the interpreter ends."""

    def __init__(self, modules):
        self._modules = modules
        self._process = None
        # Registered before the program's own handlers, it runs after them.
        atexit.register(self._before_modules_are_freed)

    def all_is_loaded(self, ctypes):
        """Called each time when modules were loaded before the program."""
        if self._process:
            self._process.note_libraries()
        else:
            self._process = _Process(ctypes)

    def _before_modules_are_freed(self):
        # Tearing down hundreds of modules takes longer than most programs; the program's own objects are torn down.
        loaded = [name for name, module in sys.modules.items() if self._modules.get(name) is module]
        for name in loaded:
            del sys.modules[name]
        if self._process and _has_succeeded() and all(map(_is_written, (sys.stdout, sys.stderr))):
            sys.__dict__[_NAME] = _Last(self._process)


class _Process:
    """Ends the process with status 0. Every call keeps the interpreter locked, so that no other thread goes on."""

    def __init__(self, ctypes):
        self._c = ctypes.PyDLL(None)
        self._collect = gc.collect
        self._exit_now = os._exit
        self._number = ctypes.c_ulonglong
        callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._read = callback(self._keep_count)
        self._libraries = 0
        self.note_libraries()

    def note_libraries(self):
        """Those that are loaded now were not loaded by the program."""
        self._libraries_before = self._count_libraries()

    def end(self):
        # As the interpreter does once more: the program's objects in cycles that `sys` kept alive.
        self._collect()
        self._c.fflush(None)
        if self._count_libraries() != self._libraries_before:
            self._c.exit(0)
        # The libraries that were loaded before the program have nothing to write; a plain interpreter would not have
        # most of them, and their handlers take 2 ms.
        self._exit_now(0)

    def _count_libraries(self):
        """How many shared libraries were loaded since the start."""
        self._c.dl_iterate_phdr(self._read, None)
        return self._libraries

    def _keep_count(self, info, _size, _data):
        # dl_phdr_info.dlpi_adds, after two pointers, an address and a short number.
        self._libraries = self._number.from_address(info + 32).value
        return 1  # the others say the same


class _Last:
    def __init__(self, process):
        self._process = process

    def __del__(self):
        self._process.end()


def _has_succeeded():
    """Whether the exit status is 0, as far as that can be known here: the interpreter keeps what a program ended by in
    `sys`, and removes the names of its file from __main__ unless it ended by SystemExit."""
    main = getattr(sys.modules.get("__main__"), "__dict__", {})
    return (
        not hasattr(sys, "last_exc")
        and not hasattr(sys, "last_value")
        and "__file__" not in main
        and "__cached__" not in main
        and all(name in main for name in _OF_EVERY_MAIN)
    )


def _is_written(stream):
    """Whether everything in it is written. Where it is not, the interpreter says so, and by its status."""
    if type(stream).__name__ != "TextIOWrapper" or type(stream).__module__ != "_io":
        return False
    try:
        stream.flush()
    except (OSError, ValueError):
        return False
    return True
