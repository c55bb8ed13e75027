import os, socket, threading
print("== variables", *os.environ, sep="\n")
print("== reached")
def reach(target, kind):
    host, port = target.rsplit("/", 1)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as one:
            one.settimeout(2)
            one.connect((host, int(port)))
            if kind == socket.SOCK_DGRAM:
                one.send(b"sb\1\0\0\1\0\0\0\0\0\0\7version\4bind\0\0\20\0\3")
                one.recv(1)
        print(target)
    except OSError:
        pass
all = [(target, socket.SOCK_STREAM) for target in "TARGETS".split()]
all += [(target, socket.SOCK_DGRAM) for target, _ in all if target.endswith("/53")]
tries = [threading.Thread(target=reach, args=one) for one in all]
for one in tries:
    one.start()
for one in tries:
    one.join()
print("tried")
for name in "FILES".split():
    print("==", name)
    try:
        print(open(name).read())
    except OSError:
        pass
print("== writable")
open("/data/self-test", "w").close()
print("yes")
print("== groups")
try:
    os.mkdir("/sys/fs/cgroup/self-test")
    print("open")
except OSError:
    pass
