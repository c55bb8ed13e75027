"""Memory of an interpreter that waits: how the end of a program is not delayed until all of it is freed.

Loaded by sandbox_warm, which removes it from sys.modules. It imports only what every interpreter has loaded.
"""

import os

_KEEPERS_STACK = 64 << 10
_ONE_THREAD = 3  # link count in /proc of a folder with one folder in it
_LEAVES_WITHIN_MS = 1000


def gather_pages(ctypes):
    """Merges small pages into huge ones, where the kernel can: freeing 60 MB page by page takes longer than most
    programs run, and the kernel reports the end of a program only after that."""
    if ctypes is None:
        return
    size, collapse = 2 << 20, 25  # MADV_COLLAPSE, since Linux 6.1
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as maps:
        areas = [line.split() for line in maps]
    for where, rights, _, _, inode, *_ in areas:
        if rights == "rw-p" and inode == "0":
            start, end = (int(edge, 16) for edge in where.split("-"))
            start, end = -(-start // size) * size, end // size * size
            if start < end:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), collapse)


def keep(ctypes):
    """Starts a process that shares this one's memory and does nothing; returns its number. The kernel reports the end
    of a program after its memory is freed, and 100 MB take longer than most programs run; with a keeper nothing has to
    be freed before the report. Process 1 kills the keeper with everything else.

    The keeper is a child of process 1 and not of this process. It has no open files, which would stay open when the
    program closes them or replaces itself, and blocks all signals. Its memory is freed at nice value 19, so that other
    programs go first. It inherits all of this from the thread that makes it: a process can neither lower its own nice
    value again nor change that of another."""
    import _thread
    from _signal import SIG_BLOCK, pthread_sigmask, valid_signals
    from time import sleep

    share_memory_folder_and_files, child_of_process_1 = 0x100 | 0x200 | 0x400, 0x8000  # CLONE_VM, _FS, _FILES; _PARENT
    of_this_thread_alone = 2  # CLOSE_RANGE_UNSHARE
    libc = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(_KEEPERS_STACK)
    top = ctypes.c_void_p(ctypes.addressof(stack) + _KEEPERS_STACK)
    pause = ctypes.cast(libc.pause, ctypes.c_void_p)
    made, pid = _thread.allocate_lock(), 0

    def make():
        nonlocal pid
        try:
            pthread_sigmask(SIG_BLOCK, valid_signals())
            os.setpriority(os.PRIO_PROCESS, 0, 19)
            libc.close_range(0, ctypes.c_uint(-1), of_this_thread_alone)
            pid = libc.clone(pause, top, share_memory_folder_and_files | child_of_process_1, None)
        finally:
            made.release()

    made.acquire()
    _thread.start_new_thread(make, ())
    made.acquire()
    # No request waits for this yet. On a busy machine a thread of that nice value takes time to exit, and until then
    # the program would see two threads.
    for _ in range(_LEAVES_WITHIN_MS):
        if os.stat("/proc/self/task").st_nlink == _ONE_THREAD:
            break
        sleep(0.001)
    return pid, stack
