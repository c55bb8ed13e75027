import atexit, os, sys
atexit.register(print, "never")
sys.stdout.write("lost?\nhalf a line")
os._exit(12)
