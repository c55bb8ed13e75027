import random, numpy as np, uuid, secrets, os, tempfile
random.seed(1); np.random.seed(1); print(random.random(), np.random.rand(), np.random.default_rng(3).random())
print(random.Random(5).random(), hash(1), hash("a") != 0, random.getstate()[0])
