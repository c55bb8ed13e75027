"""Tools of MCP servers, as functions. `from mcptools.<server>.<tool> import Params, run` calls a tool:

    result = run(Params(query="…"))        # or run(query="…"), or await run_async(query="…")

Modules come from the server when they are imported; which there are, `help("mcptools.<server>")` lists. A program has
no address and no token of any tool server: calls go through the sandbox's server, which decides on each.
"""

import sys as _sys

_LAZY = {"ToolError", "ToolFailed", "ToolDenied", "Answer", "call", "call_async", "last_files"}
__all__ = sorted(_LAZY)


class _Finder:
    """Finds the modules of servers and of their tools."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        package, _, rest = name.partition(".")
        if package != "mcptools" or not rest or rest.startswith("_") or rest.count(".") > 1:
            return None
        from mcptools import _client

        return _client.spec(name)


def __getattr__(name):
    if name in _LAZY:
        from mcptools import _client

        return getattr(_client, name)
    raise AttributeError(f"module 'mcptools' has no attribute {name!r}")


_sys.meta_path.append(_Finder)
