import matplotlib
print(matplotlib.get_backend() if False else matplotlib.rcParams["backend"])
matplotlib.use("Agg")
import matplotlib.pyplot as plt, numpy as np, os
fig, ax = plt.subplots(); ax.plot(np.arange(5) ** 2, label="squares"); ax.set_title("T"); ax.legend(); fig.savefig("/data/plot.png")
print(plt.get_fignums(), sorted(plt.rcParams)[:3], "MPLCONFIGDIR" in os.environ)
plt.figure(); plt.hist([1, 2, 2]); plt.show()
