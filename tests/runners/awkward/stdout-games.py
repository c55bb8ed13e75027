import sys, os
sys.stdout.write("no newline"); os.write(1, b"raw"); print(" then", end=""); sys.stdout.flush()
sys.stdout.reconfigure(line_buffering=False); print("buffered"); os.write(1, b"before it\n")
sys.stderr.write("half"); os.dup2(2, 9); os.write(9, b"nine\n")
sys.stdout.buffer.write(b"\xff\x00bytes\n"); print("\udce9".encode("utf-8", "surrogateescape"))
print("\ud800")
