try: x = bytearray(10 ** 13)
except MemoryError as error: print("MemoryError", error)
