import sys
class Loud:
    def __init__(self, name): self.name = name
    def __del__(self): print("del", self.name, flush=True)
a = Loud("a")
b = Loud("b")
class Holder: kept = Loud("kept by a class")
def default(x=Loud("default")): pass
ring = [Loud("in a ring")]; ring.append(ring)
sys.kept = Loud("kept by sys")
_private = Loud("private")
print("end")
