x = []
print("begin")
while True: x.append(bytearray(4 << 20))
