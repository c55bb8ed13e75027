import mmap

area = mmap.mmap(-1, 1 << 30, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
for page in range(0, len(area), 4096):
    area[page] = 1
