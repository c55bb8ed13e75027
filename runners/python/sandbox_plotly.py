"""Plotly figures without a browser: one that is shown becomes a page in /data, which holds all that it needs.

`prepare` is called when Plotly has chosen how it shows figures. In a notebook that would be a message for an extension
of the notebook, elsewhere a browser on this machine; neither exists here. No file is overwritten.
"""

import itertools
import os

_FOLDER = "/data"


def prepare(chooser):
    """Makes the renderer of this module the default of `plotly.io._renderers`."""

    class PageRenderer(chooser.ExternalRenderer):
        def render(self, figure):
            from plotly.io import to_html

            page = to_html(figure, include_plotlyjs=True, validate=False)
            for number in itertools.count(1):
                name = f"figure-{number}.html"
                path = os.path.join(_FOLDER, name)
                try:
                    file = open(path, "x", encoding="utf-8")
                except FileExistsError:
                    continue
                try:
                    with file:
                        file.write(page)
                except BaseException:
                    os.unlink(path)  # a page that cannot be written whole leaves no part
                    raise
                print(f"The figure is {name}.")
                return

    chooser.renderers["sandbox"] = PageRenderer()
    if "PLOTLY_RENDERER" not in os.environ:
        chooser.renderers.default = "sandbox"
