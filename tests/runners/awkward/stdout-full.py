import sys
sys.stdout = open("/dev/full", "w")
print("lost")
