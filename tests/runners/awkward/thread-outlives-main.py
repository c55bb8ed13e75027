import threading, time, atexit
def work():
    time.sleep(0.3); print("worker is done")
threading.Thread(target=work).start()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
atexit.register(print, "atexit after the worker")
print("main is done")
