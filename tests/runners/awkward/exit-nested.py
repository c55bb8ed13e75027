import atexit, sys
def last():
    print("atexit", file=sys.stderr)
    sys.exit(9)
atexit.register(last)
try:
    sys.exit(4)
finally:
    print("finally")
