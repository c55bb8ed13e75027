import os
import signal
import time

# The interpreter that was started ahead is this one: a child goes on when it is killed.
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    print("alive")
    time.sleep(0.1)
