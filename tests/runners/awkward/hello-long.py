print("x" * 300000)
import sys
print("y" * 300000, file=sys.stderr)
