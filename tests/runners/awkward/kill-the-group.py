import os, signal, time
if os.fork() == 0: time.sleep(100)
signal.signal(signal.SIGTERM, lambda *_: print("TERM reached me"))
time.sleep(0.1)
os.kill(0, signal.SIGTERM); print(os.wait()[1])
try: os.kill(1, signal.SIGKILL); print("sent to 1")
except OSError as error: print(error)
time.sleep(0.1); print("alive")
