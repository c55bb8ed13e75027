import os, sys
print("before", flush=True)
child = os.fork()
if child:
    print("status", os.waitpid(child, 0)[1])
else:
    print("child")
kept = open(f"kept-{bool(child)}.txt", "w"); kept.write("to the end")
