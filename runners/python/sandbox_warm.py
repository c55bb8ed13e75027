"""Preloads modules in an interpreter that was started ahead of its program, and waits for the program.

sitecustomize calls `wait()` when process 1 started this interpreter ahead of its program (see ../README.md, protocol
1). `wait()` returns before the program's file is opened, and the interpreter itself then runs the program from its own
command line. So nothing of `__main__`, of tracebacks or of the exit needs to be imitated.

Preloaded modules must not be visible until the program imports them: not in sys.modules, not as an attribute of a
package, not by their effects on the interpreter. They are on a shelf. The finder here hands a module out with
everything that a plain interpreter would have loaded by the same import; `sandbox_closures`, which is built with the
image, lists that.
"""

import sys

_FOUND = set(sys.modules)  # what every interpreter here has loaded so far, and this module

import _contextvars  # noqa: E402
import atexit  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
from _frozen_importlib_external import PathFinder  # noqa: E402

# An interpreter or a library reads these when it starts, so a program that sets one needs a new interpreter.
_READ_AT_START = (
    "PYTHON", "MPL", "MATPLOTLIB", "OPENBLAS", "OMP", "NUMEXPR", "NPY", "NUMPY", "PANDAS", "LD_", "LC_", "LANG",
    "GLIBC", "MALLOC", "TZ", "HOME", "PATH", "TMP", "TEMP", "XDG", "ARROW", "JE_",
)
_NEIGHBOURS = "/data"
# How long an interpreter that has what most programs import waits for a program before it loads the rest. Where
# programs follow each other quickly, loading would take processor time from interpreters that have less.
_REST_S = 1.0


class _Shelf:
    """The modules that are loaded and not yet imported by the program; the first finder on the path."""

    def __init__(self, lend_the_font_list):
        self.modules = {}
        self.closures = {}
        self.at_exit = {}  # what a module registered with atexit when it was loaded
        self.filters = {}  # what it added to the warnings filters
        self.finders = {}  # what it added to sys.meta_path
        self.names_of_main = set()
        self.all = {}  # everything that was ever here: it stays alive to the end of the process
        self.top_names = frozenset()  # of all that is loaded: a file of such a name in /data would come first
        self.lend_the_font_list = lend_the_font_list
        self.matplotlib_file = self.matplotlib_backend = None

    def find_spec(self, name, path=None, target=None):
        module = self.modules.get(name)
        if module is None:
            return None
        own = module.__spec__
        if "." not in name and own.origin not in ("built-in", "frozen"):
            # A file beside the program has precedence over a module of the same name here.
            found = PathFinder.find_spec(name, path)
            if found is None or found.origin != own.origin:
                return None
        spec = type(own)(name, _HandsOut(self, module, own), origin=own.origin, loader_state=own.loader_state)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.cached, spec.has_location = own.cached, own.has_location
        return spec

    def hide(self, names):
        for name in names:
            self.modules[name] = self.all[name] = module = sys.modules.pop(name)
            package, _, last = name.rpartition(".")
            parent = self._parent(package)
            if parent is not None and parent.__dict__.get(last) is module:
                delattr(parent, last)

    def lay_open(self):
        """Puts everything back where a plain import leaves it, so that more can be loaded."""
        for name, module in self.modules.items():
            sys.modules[name] = module
            self._attach(name, module)
        self.modules.clear()
        for finders in self.finders.values():
            sys.meta_path.extend(finders)
        self.finders.clear()

    def _parent(self, package):
        return self.all.get(package) or sys.modules.get(package)

    def _attach(self, name, module):
        package, _, last = name.rpartition(".")
        parent = self._parent(package)
        if parent is not None and last not in parent.__dict__:
            setattr(parent, last, module)

    def hand_out(self, wanted):
        """The program imports `wanted`: afterwards this interpreter has the same modules as a plain one."""
        for name in (*self.closures.get(wanted, ()), wanted):
            if name in self.names_of_main:
                sys.modules.setdefault(name, sys.modules["__main__"])
            module = self.modules.pop(name, None)
            if module is None or sys.modules.setdefault(name, module) is not module:
                continue
            if name != wanted:
                self._attach(name, module)
            self._replay(name, module)

    def _replay(self, name, module):
        """Applies the side effects of importing the module."""
        for function, args, kwargs in self.at_exit.pop(name, ()):
            atexit.register(function, *args, **kwargs)
        for finder in self.finders.pop(name, ()):
            sys.meta_path.append(finder)
        if filters := self.filters.pop(name, None):
            import warnings

            warnings.filters[0:0] = filters
            warnings._filters_mutated()
        if name == "logging":
            import time

            module._startTime = time.time_ns()
        elif name == "matplotlib":
            self._replay_matplotlib(module)

    def _replay_matplotlib(self, matplotlib):
        self.lend_the_font_list()
        file = matplotlib.matplotlib_fname()
        if file != self.matplotlib_file:
            matplotlib.rc_file(file)
        backend = os.environ.get("MPLBACKEND")
        if backend != self.matplotlib_backend:
            matplotlib.rcParams["backend"] = backend or matplotlib.rcParamsOrig["backend"]


class _HandsOut:
    """The loader of a preloaded module. Everything else is delegated to its real loader."""

    def __init__(self, shelf, module, spec):
        self._shelf, self._module, self._spec = shelf, module, spec

    def __getattr__(self, name):
        return getattr(self._spec.loader, name)

    def create_module(self, spec):
        return self._module

    def exec_module(self, module):
        module.__spec__ = self._spec
        self._shelf.hand_out(self._spec.name)


class _Watch:
    """Loads modules, and records the effects of each on the interpreter, so that they can be undone until imported."""

    def __init__(self, shelf):
        self._shelf = shelf
        self._environment = dict(os.environ)
        self._meta_path = list(sys.meta_path)
        self._register = atexit.register
        self._folder = os.getcwd()
        # Files in /data are not used here.
        os.chdir("/")
        atexit.register = self._note

    def _note(self, function, *args, **kwargs):
        name = sys._getframe(1).f_globals.get("__name__", "")
        self._shelf.at_exit.setdefault(name, []).append((function, args, kwargs))
        return function

    def load(self, name):
        warnings = sys.modules.get("warnings")
        before = list(warnings.filters) if warnings else []
        try:
            __import__(name)
        except ImportError:
            return
        warnings = sys.modules.get("warnings")
        added = [entry for entry in warnings.filters if entry not in before] if warnings and before else []
        if added:
            self._shelf.filters[name] = added
            warnings.filters[:] = before
            warnings._filters_mutated()

    def end(self):
        atexit.register = self._register
        matplotlib = sys.modules.get("matplotlib")
        if matplotlib is not None:
            self._shelf.matplotlib_file = matplotlib.matplotlib_fname()
            self._shelf.matplotlib_backend = os.environ.get("MPLBACKEND")
            self._take_back_the_font_list()
        for name in set(os.environ) - set(self._environment):
            del os.environ[name]
        for finder in sys.meta_path[:]:
            module = getattr(finder, "__module__", None) or type(finder).__module__
            if finder not in self._meta_path and finder is not self._shelf:
                sys.meta_path.remove(finder)
                self._shelf.finders.setdefault(module, []).append(finder)
        self._shelf.hide([name for name in sys.modules if name not in _FOUND])
        os.chdir(self._folder)

    @staticmethod
    def _take_back_the_font_list():
        folder = os.environ.get("MPLCONFIGDIR", "")
        if folder.startswith("/tmp/"):
            for entry in os.listdir(folder):
                os.unlink(folder + "/" + entry)
            os.rmdir(folder)


class Control:
    """The socket of process 1."""

    def __init__(self, fd):
        self._fd = fd
        os.set_inheritable(fd, False)

    def say(self, word):
        try:
            os.write(self._fd, word)
        except OSError:
            pass  # the other end is closed; the next read handles that

    def has_request(self, select, within_s=0):
        """Whether the program arrives within this time, in seconds."""
        return bool(select.select([self._fd], [], [], within_s)[0])

    def request(self):
        """Waits for the program; returns whether it has input, its arguments and its variables."""
        length = int.from_bytes(self._read(4), "big")
        has_input, count, *rest = self._read(length).split(b"\0")[:-1]
        os.close(self._fd)
        return has_input == b"pipe", rest[: int(count)], rest[int(count) :]

    def _read(self, length):
        have = b""
        while len(have) < length:
            more = os.read(self._fd, length - len(have))
            if not more:
                os._exit(0)  # process 1 is gone, so this interpreter is not needed
            have += more
        return have


def _preload(shelf, steps, is_wanted=lambda: False):
    """Loads the modules one by one, until the interpreter is wanted; whether all are loaded."""
    # First, so that the finders of modules that were loaded before count as what these modules add.
    watch = _Watch(shelf)
    shelf.lay_open()
    # Garbage collection takes about 15 % of the time of `import pandas` and finds almost nothing.
    gc.disable()
    try:
        for step in steps:
            if is_wanted():
                return False
            # A module must not set context variables of the program.
            _contextvars.Context().run(watch.load, step)
        return True
    finally:
        gc.enable()
        watch.end()


def _settle(shelf):
    """Excludes the preloaded modules from garbage collection."""
    shelf.top_names = frozenset(name.partition(".")[0] for name in shelf.all)
    gc.freeze()
    gc.collect()
    _renew_main(shelf)


def _renew_main(shelf):
    """Replaces __main__ by one that is not frozen, so that it and the program's objects are torn down as usual."""
    old = sys.modules["__main__"]
    sys.modules["__main__"] = new = type(sys)("__main__")
    new.__dict__.update(old.__dict__)
    new.__annotations__ = {}
    for name in [name for name, module in shelf.all.items() if module is old]:
        # multiprocessing has a second name for it. Kept here it would never be freed.
        del shelf.all[name], shelf.modules[name]
        shelf.names_of_main.add(name)


def _load(shelf, control):
    """Loads what most programs import and reports `w`, then loads the rest unless the program arrives, and reports `w`
    again; returns the keeper and its stack. A program that arrives before the first `w` is run by the spare
    interpreter, not by this one."""
    import sandbox_closures
    import sandbox_exit
    import sandbox_memory

    del sys.modules["sandbox_closures"], sys.modules["sandbox_exit"], sys.modules["sandbox_memory"]
    shelf.closures = sandbox_closures.CLOSURES
    end = sandbox_exit.Exit(shelf.all)
    keeper, stack = 0, None
    _preload(shelf, sandbox_closures.FIRST)
    ctypes, select = shelf.all.get("ctypes"), shelf.all.get("select")
    sandbox_memory.gather_pages(ctypes)
    _settle(shelf)
    if ctypes:
        end.all_is_loaded(ctypes)
        keeper, stack = sandbox_memory.keep(ctypes)
    if keeper > 0:
        control.say(b"k" + keeper.to_bytes(4, "big"))
    control.say(b"w")
    if not control.has_request(select, _REST_S):
        if _preload(shelf, sandbox_closures.REST, lambda: control.has_request(select)):
            sandbox_memory.gather_pages(ctypes)
        _settle(shelf)
        if ctypes:
            end.all_is_loaded(ctypes)
        control.say(b"w")
    return keeper, stack


def _is_for_another(shelf, variables):
    """Whether the program could observe that this interpreter was started before it."""
    if any(variable.startswith(_READ_AT_START) for variable in variables):
        return True
    try:
        return any(entry.partition(".")[0] in shelf.top_names for entry in os.listdir(_NEIGHBOURS))
    except OSError:
        return False


def wait(lend_the_font_list):
    """Returns when the program arrives, with the interpreter in the state that a plain start would have."""
    control = Control(int(os.environ.pop("SANDBOX_CONTROL_FD")))
    is_spare = os.environ.pop("SANDBOX_SPARE", None)
    control.say(b"u")
    shelf = _Shelf(lend_the_font_list)
    keeper = 0
    if is_spare:
        for name in set(sys.modules) - _FOUND:
            del sys.modules[name]
    else:
        keep = [shelf]
        keep.append(keep)  # a ring that the collector does not see is never taken apart
        sys.meta_path.insert(0, shelf)
        keeper, stack = _load(shelf, control)
        keep.append(stack)
    has_input, arguments, variables = control.request()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    arguments = [os.fsdecode(argument) for argument in arguments]
    if not has_input:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    if _is_for_another(shelf, [os.fsdecode(variable) for variable in variables]):
        if keeper > 0:
            os.kill(keeper, 9)  # its memory is not needed
        os.execv(sys.executable, sys.orig_argv + arguments)
    sys.argv += arguments
    sys.orig_argv += arguments
