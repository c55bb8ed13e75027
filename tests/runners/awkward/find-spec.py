import importlib.util, importlib.metadata, importlib.resources, sys, pkgutil
for name in ["numpy", "pandas", "matplotlib", "json", "math", "missing_thing", "importlib", "openpyxl", "mpl_toolkits", "zoneinfo"]:
    spec = importlib.util.find_spec(name)
    print(name, spec and (spec.name, spec.origin, spec.cached, spec.has_location, spec.parent, spec.submodule_search_locations and list(spec.submodule_search_locations)), name in sys.modules)
import numpy, json, mpl_toolkits
print(numpy.__spec__.loader.__class__, json.__spec__, json.__loader__ is json.__spec__.loader, numpy.__file__, mpl_toolkits.__spec__.origin)
print(importlib.metadata.version("pandas"), importlib.resources.files("matplotlib").joinpath("mpl-data").is_dir())
importlib.reload(json); print(json.dumps([1]))
del sys.modules["json"]; import json as again; print(again is json, again.__spec__.origin)
