import sys

sys.setrecursionlimit(10**9)


def deeper(kept):
    return deeper([kept] * 64) + 1


deeper([])
