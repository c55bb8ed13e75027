import importlib, builtins
for name in ["numpy.random", "xml.dom.minidom", "matplotlib.animation", "email.mime.text", "pandas.io.formats.style_render", "concurrent.futures.thread", "unittest.mock", "PIL.ImageFilter", "openpyxl.chart"]:
    try: module = importlib.import_module(name); print(name, module.__name__, module.__spec__.name, module.__package__)
    except ImportError as error: print(name, type(error).__name__, error)
from numpy import *
from os import path as p; from matplotlib import pyplot, cm; from xml.etree import ElementTree as ET; from concurrent import futures
print(pi, p.join("a", "b"), pyplot.__name__, ET.fromstring("<a/>").tag, futures.__all__[:2], builtins.__import__)
import numpy.nothing
