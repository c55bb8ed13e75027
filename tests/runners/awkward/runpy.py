import runpy, sys, pathlib, code, trace, timeit
pathlib.Path("/data/mod.py").write_text("print(__name__, __file__)\n")
runpy.run_module("mod", run_name="__main__"); runpy.run_path("/data/mod.py"); print(sys.argv)
print(timeit.timeit("1", number=10) < 1)
import mod, importlib; importlib.reload(mod)
