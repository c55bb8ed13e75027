import zlib

bomb = zlib.compress(bytes(100 << 20))
print(len(bomb))
kept = []
while True:
    kept.append(zlib.decompress(bomb))
