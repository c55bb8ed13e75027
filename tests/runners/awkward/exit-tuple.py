import sys
print("before")
sys.exit((1, "two"))
