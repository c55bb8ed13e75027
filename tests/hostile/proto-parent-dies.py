import os
import signal
import time

# This is the interpreter that was started ahead: a child continues when it is killed.
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    print("alive")
    time.sleep(0.1)
