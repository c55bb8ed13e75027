import gc
class Node: pass
found = []
class Loud(Node):
    def __del__(self): found.append(1)
for _ in range(100):
    a = Loud(); a.self = a
del a
gc.collect(); print(len(found), gc.isenabled(), [o for o in gc.get_objects() if type(o) is Loud])
import weakref; n = Node(); n.me = n; r = weakref.ref(n); del n; gc.collect(); print(r())
