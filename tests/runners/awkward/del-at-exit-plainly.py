import sys, os
class Loud:
    def __init__(self, name): self.name = name
    def __del__(self, write=os.write): write(1, f"del {self.name} {type(sys).__name__ if sys else None}\n".encode())
a, b = Loud("a"), Loud("b")
def default(x=Loud("default")): pass
ring = [Loud("in a ring")]; ring.append(ring)
_private = Loud("private")
class Holder: kept = Loud("kept by a class")
print("end")
