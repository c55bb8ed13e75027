# Patches the memory that it shares with its keeper, so that the keeper starts processes that run for ever, and exits.
# Only a standby that has loaded has a keeper. The code is for x86-64.
import ctypes
import mmap
import os
import signal
import time

FLAG = 1024
SYSCALL = b"\x0f\x05"
FUNCTION_BYTES = 160
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
code = mmap.mmap(-1, mmap.PAGESIZE, private, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
machine_code = b"".join((
    b"\x48\xbf" + (at + FLAG).to_bytes(8, "little") + b"\xc6\x07\x01",  # rdi = flag; *rdi = 1
    b"\xbb\x08\0\0\0",  # ebx = 8
    b"\xb8\x39\0\0\0\x0f\x05",  # again: fork()
    b"\x85\xc0\x74\x04\xff\xcb\x75\xf1",  # if this is the parent and --ebx: goto again
    b"\xb8\x18\0\0\0\x0f\x05\xeb\xf7",  # for (;;) sched_yield()
))
code[: len(machine_code)] = machine_code
goto = b"\x48\xb8" + at.to_bytes(8, "little") + b"\xff\xe0"  # goto code


def others():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]


# Where glibc's function, or one that it calls, makes a system call: since version 2.41 that is another function.
def calls_of(function, text, depth=3):
    size = min(FUNCTION_BYTES, text.stop - function)
    body = ctypes.string_at(function, size)
    found = {function + n for n in range(size) if body.startswith(SYSCALL, n)}
    for n in range(size - 5):
        target = function + n + 5 + int.from_bytes(body[n + 1 : n + 5], "little", signed=True)
        if body[n] == 0xE8 and depth and target in text:
            found |= calls_of(target, text, depth - 1)
    return found


def text_with(function):
    for line in open("/proc/self/maps"):
        start, end = (int(edge, 16) for edge in line.split()[0].split("-"))
        if function in range(start, end):
            return range(start, end)


keepers = others()
if os.uname().machine == "x86_64" and keepers:
    libc = ctypes.CDLL(None)
    pause = ctypes.cast(libc.pause, ctypes.c_void_p).value
    text = text_with(pause)
    places = {place: ctypes.string_at(place, len(goto)) for place in calls_of(pause, text)}
    if libc.mprotect(ctypes.c_void_p(text.start), ctypes.c_size_t(len(text)), 7) != 0:
        raise SystemExit("mprotect")
    # Until they are put back, this program makes no system call but kill.
    for place in places:
        ctypes.memmove(place, goto, len(goto))
    # A process that blocks all signals is stopped all the same, and makes its system call again when it continues.
    until = time.monotonic() + 5
    while not code[FLAG] and time.monotonic() < until:
        for pid in keepers:
            os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
    for place, bytes_there in places.items():
        ctypes.memmove(place, bytes_there, len(goto))
print("patched" if code[FLAG] else "no keeper", flush=True)
os._exit(7)
