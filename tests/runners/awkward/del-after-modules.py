import builtins, sys, os
class Late:
    def __init__(self, name): self.name = name
    def __del__(self, write=os.write): write(1, f"del {self.name}\n".encode())
sys.late = Late("sys")
builtins.late = Late("builtins")
class Ring: pass
ring = sys.ring = Ring(); ring.ring = ring; ring.late = Late("in a ring of sys")
ring = builtins.ring = Ring(); ring.ring = ring; ring.late = Late("in a ring of builtins")
del ring
unclosed = open("unclosed.txt", "w"); unclosed.write("written at the end")
held = sys.held = open("held.txt", "w"); held.write("held by sys"); sys.held_too = [held]
print("end", end="")
