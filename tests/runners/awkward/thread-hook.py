import threading, sys
threading.excepthook = lambda args: print("hook", args.exc_type.__name__, args.thread.name)
sys.unraisablehook = lambda unraisable: print("unraisable", unraisable.exc_type.__name__)
def work(): 1 / 0
t = threading.Thread(target=work, name="w"); t.start(); t.join()
class Bad:
    def __del__(self): raise KeyError("x")
Bad()
