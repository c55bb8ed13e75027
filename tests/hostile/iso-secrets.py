import glob
import os

print(dict(os.environ))
for pattern in ("/proc/*/environ", "/proc/*/cmdline", "/proc/self/mountinfo", "/proc/self/cgroup", "/etc/host*"):
    for path in glob.glob(pattern):
        try:
            with open(path, errors="replace") as file:
                print(path, file.read())
        except OSError:
            pass
print("held: 1 attempts")
