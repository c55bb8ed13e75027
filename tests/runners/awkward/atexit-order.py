import atexit, logging, weakref
class Thing: pass
thing = Thing()
weakref.finalize(thing, print, "finalized")
atexit.register(print, "first registered")
import json, multiprocessing, concurrent.futures
@atexit.register
def second(): print("second registered"); raise ValueError("in atexit")
atexit.register(lambda: logging.warning("logged at exit"))
