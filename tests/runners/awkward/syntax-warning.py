x = 1
print(x is 1, "\d")
assert (1, "always")
