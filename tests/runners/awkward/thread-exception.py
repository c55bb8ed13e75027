import threading
def work(): raise ValueError("in a thread")
t = threading.Thread(target=work, name="worker"); t.start(); t.join()
print("still here", threading.active_count(), [t.name for t in threading.enumerate()])
