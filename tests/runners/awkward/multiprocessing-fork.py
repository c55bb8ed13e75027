import multiprocessing as mp, os
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
def work(pair): return Pair(pair.b, pair.a)
def count(queue): queue.put(("from", __name__)); raise SystemExit(4)
if __name__ == "__main__":
    mp.set_start_method("fork")
    with mp.Pool(2) as pool:
        print([(p.a, p.b) for p in pool.map(work, [Pair(i, -i) for i in range(4)])])
    queue = mp.Queue(); p = mp.Process(target=count, args=(queue,)); p.start(); print(queue.get()); p.join(); print(p.exitcode)
