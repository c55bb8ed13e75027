import os
os.environ["MPLBACKEND"] = "svg"
open("/data/matplotlibrc", "w").write("lines.linewidth: 7\n")
import matplotlib
print(matplotlib.rcParams["lines.linewidth"], matplotlib.rcParams["backend"], matplotlib.matplotlib_fname(), matplotlib.get_configdir(), matplotlib.get_cachedir())
import matplotlib.pyplot as plt
print(plt.get_backend(), sorted(os.listdir("/tmp/.matplotlib")), os.environ.get("MPLCONFIGDIR"))
plt.plot([1]); plt.savefig("/data/a.svg", metadata={"Date": None}); print(len(open("/data/a.svg").read()) > 1000)
os.remove("/data/a.svg")
