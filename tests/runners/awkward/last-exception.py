import sys
try:
    1 / 0
except ZeroDivisionError as error:
    sys.last_exc = error
print("ends well")
