import sys
def depth(n=1):
    try: return depth(n + 1)
    except RecursionError: return n
print(depth(), sys.getrecursionlimit())
def forever(): forever()
forever()
