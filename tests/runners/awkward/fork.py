import os, sys
print("before")
pid = os.fork()
if pid == 0:
    print("child", os.getppid() > 1, __name__); sys.exit(3)
print(os.waitpid(pid, 0)[1]); print("parent", os.getppid())
