import sys, __main__
print(sorted(globals()))
print(__name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__, __builtins__)
print(vars().get("__cached__", "missing"), __annotations__, sys.modules["__main__"] is __main__)
x: int = 1
print(__annotations__, __loader__.path, __loader__.name)
