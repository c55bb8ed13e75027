"""A docstring."""
from __future__ import annotations
def f(x: undefined) -> unknown: return x
print(f.__annotations__, __doc__)
