"""Runs in every Python of this image before the program: sets the import path and the buffering of output.

Python finds this module on the standard paths, and /data is not one of them yet: a file that an earlier program left in
/data cannot replace it. It imports only what is built in, because every run would pay for more.
"""

import atexit
import sys

# A program that is stopped by a limit keeps its printed lines, and lines of threads and processes stay whole.
if sys.stdout is not None:
    sys.stdout.reconfigure(line_buffering=True)


class _WhenMatplotlibComes:
    """Prepares matplotlib only when a program imports it."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "matplotlib":
            cls._lend_the_font_list()
        elif name == "matplotlib.pyplot":
            sys.meta_path.remove(cls)
            return _spec_with(name, path, _watch_figures)
        return None

    @staticmethod
    def _lend_the_font_list():
        # matplotlib needs a writable folder. Building a new font list would take seconds.
        import os

        if "MPLCONFIGDIR" in os.environ:
            return
        folder = os.environ["MPLCONFIGDIR"] = "/tmp/.matplotlib"
        try:
            os.mkdir(folder)
            for entry in os.listdir("/opt/matplotlib"):
                os.symlink("/opt/matplotlib/" + entry, folder + "/" + entry)
        except OSError:
            pass  # matplotlib then makes its own, slower


class _WhenPlotlyComes:
    """Has Plotly show figures as pages."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "plotly.io._renderers":
            return None
        sys.meta_path.remove(cls)
        return _spec_with(name, path, _prepare_plotly)


class _WhenNothingElseFinds:
    """Finds the packages that were installed into the conversation, also those that come while the program runs."""

    folder = "/data/.packages/python"
    seen = None

    @classmethod
    def look(cls):
        """Puts their folder at the end of the import path; whether there is one."""
        try:
            found = os.stat(cls.folder)
        except OSError:
            return False
        # An installation puts another folder in the place of the last one.
        now = (found.st_dev, found.st_ino)
        if now != cls.seen:
            cls.seen = now
            import site

            sys.path_importer_cache.pop(cls.folder, None)
            site.addsitedir(cls.folder)
        return True

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if path is not None or not cls.look():
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [cls.folder])


def _watch_figures(_):
    import sandbox_figures  # noqa: F401  # importing it is what starts it


def _prepare_plotly(module):
    import sandbox_plotly

    sandbox_plotly.prepare(module)


def _spec_with(name, path, after):
    """The module's own spec, with something that is done after it was executed."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name, path)
    if spec is not None:
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            after(module)

        spec.loader.exec_module = exec_module
    return spec


sys.meta_path[:0] = [_WhenMatplotlibComes, _WhenPlotlyComes]

import os  # noqa: E402  # it is loaded since before this module

if "SANDBOX_CONTROL_FD" in os.environ:
    # Started ahead of its program: this returns when the program arrives.
    import sandbox_warm

    del sys.modules["sandbox_warm"]
    sandbox_warm.wait(_WhenMatplotlibComes._lend_the_font_list)


def _hint():
    """After a program that could not import a module: says what is here instead. An interpreter keeps the error that
    ended its program in sys.last_exc, so nothing has to be put in the place of sys.excepthook."""
    error = getattr(sys, "last_exc", None)
    if isinstance(error, (ImportError, SyntaxError)) and sys.stderr is not None:
        import sandbox_hints

        sandbox_hints.after(error)


# Later handlers run earlier: after those of the program, and before what `wait` registered.
atexit.register(_hint)

# As if the program were in /data: files there can be imported. Nothing is imported between this line and the program.
sys.path.insert(0, "/data")
sys.meta_path.append(_WhenNothingElseFinds)
_WhenNothingElseFinds.look()
