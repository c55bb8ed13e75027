"""Writes sandbox_closures.py while the image is built: the modules that are preloaded, step by step in two parts, and
the modules that a plain interpreter has loaded after importing each of them.

Each list comes from a plain interpreter that imports the module: this process forks, the child imports one module,
reports what was loaded, and forks again for each submodule that was not loaded with it.
"""

import os
import sys

# What pandas imports, and what else is quick: an interpreter is ready for a program after these. Slow modules follow
# their own dependencies, in small steps.
FIRST = """
re json random math datetime collections.abc itertools functools typing dataclasses pathlib time string textwrap
statistics csv decimal fractions heapq bisect copy enum io operator contextlib traceback threading queue
subprocess tempfile shutil glob hashlib base64 uuid secrets struct pickle calendar zoneinfo argparse
logging inspect select ctypes
numpy numpy.random numpy.linalg numpy.fft numpy.ma numpy.polynomial
dateutil.parser dateutil.relativedelta dateutil.rrule dateutil.tz pytz
pyarrow pandas
""".split()
# A program that arrives while these are loaded waits for one of them, so they are small steps too.
REST = """
html urllib.parse http.client email urllib.request pprint difflib timeit zipfile gzip bz2 lzma tarfile sqlite3
xml.etree.ElementTree configparser socket ssl asyncio
signal concurrent.futures concurrent.futures.thread concurrent.futures.process multiprocessing multiprocessing.pool
platform locale unittest mmap array cmath numpy.testing
packaging.version cycler kiwisolver pyparsing PIL.Image PIL.PngImagePlugin PIL.ImageDraw PIL.ImageFont
matplotlib matplotlib.colors matplotlib.transforms matplotlib.ticker matplotlib.patches
matplotlib.font_manager matplotlib.dviread matplotlib.textpath matplotlib.text matplotlib.collections
matplotlib.backend_bases matplotlib.image matplotlib.offsetbox matplotlib.axis matplotlib.legend matplotlib.category
matplotlib.dates matplotlib.quiver matplotlib.axes matplotlib.figure matplotlib.backends.backend_agg matplotlib.pyplot
tabulate openpyxl openpyxl.styles
zmq.asyncio tornado.ioloop jupyter_client IPython ipykernel.kernelapp ipykernel.debugger ipykernel.subshell_manager
ipykernel.comm IPython.core.completerlib IPython.core.debugger IPython.core.oinspect IPython.extensions.storemagic
""".split()

BASE = set(sys.modules)


def in_a_child(work):
    """Begins work in a process of its own; returns its number."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def explore(name, out, everything):
    """Imports `name`, reports the loaded modules, and continues with its submodules that were not loaded."""
    try:
        __import__(name)
    except BaseException:
        return
    have = [module for module in sys.modules if module not in BASE]
    os.write(out, f"{[name, have]}\n".encode())
    inside = {name, *have}
    for module in everything:
        parent = module.rpartition(".")[0]
        if module not in sys.modules and parent in inside and (parent + ".").startswith(name + "."):
            os.waitpid(in_a_child(lambda: explore(module, out, everything)), 0)


def lines_of(work):
    read, write = os.pipe()

    def child():
        os.close(read)
        work(write)

    pid = in_a_child(child)
    os.close(write)
    with open(read) as lines:
        found = [eval(line) for line in lines]  # our own child wrote it
    os.waitpid(pid, 0)
    return found


def load_all(out):
    for step in FIRST + REST:
        __import__(step)
    os.write(out, f"{['', [module for module in sys.modules if module not in BASE]]}\n".encode())


def main():
    [[_, everything]] = lines_of(load_all)
    tops = [module for module in everything if "." not in module]
    packages = [module for module in BASE if any(name.startswith(module + ".") for name in everything)]
    closures = {}
    for top in tops + packages:
        for name, have in lines_of(lambda out: explore(top, out, everything)):
            closures[name] = tuple(have)
    print("FIRST =", tuple(FIRST))
    print("REST =", tuple(REST))
    print("CLOSURES =", {name: have for name, have in closures.items() if name not in BASE})


main()
