import pandas as pd, json
try: json.loads("{")
except ValueError as error: print(error)
pd.DataFrame({"a": [1]})["b"]
