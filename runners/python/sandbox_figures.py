"""A matplotlib backend without a screen: figures that would be shown become PNG files in /data.

Based on Agg. `plt.show()` saves the open figures and closes them, as closing their windows would. Figures that are
still open when the program ends are saved then, whatever backend the program chose. A figure whose current content the
program or this module has already saved is not saved again. No file is overwritten.
"""

import atexit
import os
import sys

import matplotlib
from matplotlib import _pylab_helpers, backend_bases
from matplotlib.backends import backend_agg

_FOLDER = "/data"
_open_figures = _pylab_helpers.Gcf


class FigureManager(backend_bases.FigureManagerBase):
    def show(self):
        """`figure.show()`: saves this figure and leaves it open."""
        _save(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, *, block=None):
        """`plt.show()`. A call that would not block, as in an animation, leaves the figure open: its final state is
        saved."""
        if block is None:
            block = not matplotlib.is_interactive()
        if not block:
            return
        for manager in _open_figures.get_all_fig_managers():
            _save(manager.canvas.figure)
        _open_figures.destroy_all()


class FigureCanvas(backend_agg.FigureCanvasAgg):
    manager_class = FigureManager


def _content(figure):
    """The parts of a figure, by identity: drawing more, or again after clf(), changes the content."""
    parts = list(figure.get_children())
    for axes in figure.axes:
        parts.extend(axes.get_children())
    return parts


def _remember(figure):
    figure._sandbox_saved = _content(figure)


def _is_saved(figure):
    saved, now = getattr(figure, "_sandbox_saved", None), _content(figure)
    return saved is not None and len(saved) == len(now) and all(a is b for a, b in zip(saved, now))


def _save(figure):
    if _is_saved(figure):
        return
    number = 1
    while True:
        path = os.path.join(_FOLDER, f"figure-{number}.png")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            break
        except FileExistsError:
            number += 1
    try:
        with os.fdopen(descriptor, "wb") as file:
            figure.savefig(file, format="png")
    except BaseException:
        figure._sandbox_saved = None  # savefig() has noted it as saved
        os.unlink(path)  # what cannot be drawn leaves no empty file
        raise
    _remember(figure)


def _save_those_left_open():
    for manager in _open_figures.get_all_fig_managers():
        try:
            _save(manager.canvas.figure)
        except Exception as error:  # the program is over: its other figures can still be saved
            print(f"A figure left open could not be saved: {error}", file=sys.stderr)


def _remember_those_open():
    for manager in _open_figures.get_all_fig_managers():
        _remember(manager.canvas.figure)


def _notice_saving():
    # savefig() calls this method for the canvas of the format. It returns before anything can fail, so that the
    # traceback of a failing savefig() has no frame of this file.
    switch = backend_bases.FigureCanvasBase._switch_canvas_and_return_print_method

    def _switch_canvas_and_return_print_method(self, *args, **kwargs):
        _remember(self.figure)
        return switch(self, *args, **kwargs)

    backend_bases.FigureCanvasBase._switch_canvas_and_return_print_method = _switch_canvas_and_return_print_method


_notice_saving()
# Handlers registered later run earlier: this one before matplotlib's own, which closes all figures.
atexit.register(_save_those_left_open)
# The parent saves the figures that a child process inherits.
os.register_at_fork(after_in_child=_remember_those_open)
