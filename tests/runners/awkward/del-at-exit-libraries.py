import json, numpy as np, pandas as pd
class Loud:
    def __init__(self, name): self.name = name
    def __del__(self): print("del", self.name, np is not None, flush=True)
a = Loud("a")
frame = pd.DataFrame({"x": [Loud("in a frame")]})
array = np.array([Loud("in an array")], dtype=object)
print("end")
