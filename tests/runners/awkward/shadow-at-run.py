import pathlib
pathlib.Path("/data/tabulate.py").write_text("WHO = 'mine'\n"); pathlib.Path("/data/six.py").write_text("WHO = 'mine too'\n")
pathlib.Path("/data/cmath.py").write_text("WHO = 'also mine'\n"); pathlib.Path("/data/math.py").write_text("WHO = 1\n")
import tabulate, six, cmath, math
print(getattr(tabulate, "WHO", "theirs"), getattr(six, "WHO", "theirs"), getattr(cmath, "WHO", "theirs"), getattr(math, "WHO", "theirs"))
