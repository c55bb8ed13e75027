# Patches the memory that it shares with its keeper, so that the keeper starts processes that run for ever, and exits.
# Only a standby that has loaded has a keeper. The code is for x86-64.
import ctypes
import mmap
import os
import signal
import time

PAUSE_BYTES = 64  # enough of the function to hold its system call
FLAG = 1024
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


def others():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]


if os.uname().machine == "x86_64" and others():
    libc = ctypes.CDLL(None)
    pause = ctypes.cast(libc.pause, ctypes.c_void_p).value
    pages = ctypes.c_void_p(pause & -mmap.PAGESIZE)
    if libc.mprotect(pages, ctypes.c_size_t(2 * mmap.PAGESIZE), 7) != 0:
        raise SystemExit("mprotect")
    patch = b"\x90" * PAUSE_BYTES + b"\x48\xb8" + at.to_bytes(8, "little") + b"\xff\xe0"  # nop...; goto code
    ctypes.memmove(pause, patch, len(patch))
    # A process that blocks all signals is stopped all the same, and makes its system call again when it continues.
    for _ in range(500):
        for pid in others():
            os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
        if code[FLAG]:
            break
        time.sleep(0.01)
print("patched" if code[FLAG] else "no keeper", flush=True)
os._exit(7)
