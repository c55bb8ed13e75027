import sys
print("before")
sys.exit(10**20)
