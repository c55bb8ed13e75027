import sys
for name in ["re", "json", "numpy", "pandas", "matplotlib", "matplotlib.pyplot", "logging", "random", "decimal", "importlib.util", "typing", "warnings", "traceback", "threading", "select"]:
    print(name, name in sys.modules)
def has(module, name): print(module.__name__, name, hasattr(module, name))
import importlib; has(importlib, "util"); has(importlib, "metadata"); has(importlib, "machinery"); has(importlib, "_bootstrap")
import urllib; has(urllib, "parse"); has(urllib, "request")
import xml; has(xml, "etree")
import concurrent; has(concurrent, "futures")
import email; has(email, "mime"); has(email, "message")
import multiprocessing; has(multiprocessing, "pool"); has(multiprocessing, "managers")
import collections; has(collections, "abc")
import os; has(os, "path")
import PIL; has(PIL, "Image"); has(PIL, "ImageDraw")
import matplotlib; has(matplotlib, "pyplot"); has(matplotlib, "dates"); has(matplotlib, "cbook"); print("matplotlib.pyplot" in sys.modules)
import openpyxl; has(openpyxl, "styles"); has(openpyxl, "chart")
import dateutil; has(dateutil, "parser")
import numpy; print("pandas" in sys.modules, "matplotlib" in sys.modules)
try: xml.etree.ElementTree
except AttributeError as error: print(error)
