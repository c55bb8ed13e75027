import sys, os, signal, gc, threading
print(sys.argv, sys.orig_argv, sys.flags, sys.path, sys.executable, sys.prefix, sys.base_prefix)
print(sorted(sys.modules)[:200])
print(sys.warnoptions, sys.getrecursionlimit(), sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.dont_write_bytecode)
print([type(f).__name__ if not isinstance(f, type) else f.__name__ for f in sys.meta_path][-3:], len(sys.path_hooks))
print(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.garbage, gc.get_debug())
print([(s.name, str(signal.getsignal(s))[:40].split(" at ")[0]) for s in signal.valid_signals() if isinstance(s, signal.Signals)])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), threading.main_thread().name, threading.active_count())
print(sorted(os.environ.items()) and sorted(k for k in os.environ), os.getcwd(), os.getppid(), os.getpgid(0), os.getsid(0), os.nice(0), os.umask(0))
print(sorted(os.listdir("/proc/self/fd")), os.listdir("/tmp"), os.listdir("/data"))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty(), type(stream.buffer).__name__)
print(sys.getfilesystemencoding(), sys.stdin.fileno(), len(sys.intern("a")), sys.float_info.max, sys.hash_info.width)
print(open("/proc/self/status").read().split("Threads:")[1].split()[0])
