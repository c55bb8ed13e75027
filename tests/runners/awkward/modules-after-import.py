import sys
def names(step):
    print(step, len(before := set(sys.modules)), hash(frozenset(before)) and "")
    for name in sorted(before): print("  ", name)
for step in ["json", "random", "logging", "importlib.util", "numpy", "PIL.Image", "pandas", "matplotlib", "matplotlib.pyplot", "openpyxl", "asyncio", "multiprocessing"]:
    __import__(step)
    names(step)
