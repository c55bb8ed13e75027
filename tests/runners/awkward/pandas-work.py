import pandas as pd, numpy as np, io
frame = pd.read_csv(io.StringIO("k,v,d\na,1,2024-01-01\nb,2,2024-02-01\na,3,2024-03-01\n"), parse_dates=["d"])
print(frame.groupby("k").agg({"v": ["sum", "mean"]}), frame.dtypes, frame.describe(include="all"), sep="\n")
frame.to_excel("/data/t.xlsx", index=False); print(pd.read_excel("/data/t.xlsx")); import os; os.remove("/data/t.xlsx")
print(frame.set_index("d").resample("MS").sum(numeric_only=True).to_markdown(), pd.__version__, np.__version__)
frame.plot(x="d", y="v")
