import sys, threading
t = threading.Thread(target=lambda: sys.exit(5)); t.start(); t.join(); print("main goes on")
