import sys
del __file__
sys.exit(7)
