import ctypes
# C's own buffer, which C writes when the process ends.
print("first", flush=True)
ctypes.CDLL(None).puts(b"from C")
