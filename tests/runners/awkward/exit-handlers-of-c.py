import atexit, ctypes
libc = ctypes.CDLL(None)
atexit.register(print, "a handler of Python")
# A library that was not loaded before: C's own handlers run then, here one that aborts.
ctypes.CDLL("libanl.so.1")
libc.printf(b"%s\n", b"printed by C")
libc.on_exit(ctypes.cast(libc.abort, ctypes.c_void_p), None)
