import os
import sys

os.execv(sys.executable, [sys.executable, "-S", __file__])
