import warnings, sys
def show(): print([(f[0], f[1].pattern if f[1] else None, f[2].__name__, f[4]) for f in warnings.filters])
show()
import numpy; show()
import pandas, matplotlib.pyplot; show()
warnings.warn("mine"); warnings.warn("old", DeprecationWarning)
import logging
logging.warning("plain %s", logging.root.handlers); logging.info("unseen")
print(logging.root.level, logging.lastResort, sys.getrecursionlimit())
numpy.array([1]) / 0
