import _thread
import os
import resource
import signal
import subprocess
import sys
import threading

print(os.getpriority(os.PRIO_PROCESS, 0), os.listdir("/proc/self/task") == [str(os.getpid())])
print(threading.active_count(), _thread._count(), threading.get_ident() == threading.main_thread().ident)
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), resource.getrlimit(resource.RLIMIT_NICE))
subprocess.run([sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"], check=True)
thread = threading.Thread(target=lambda: print(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start()
thread.join()
