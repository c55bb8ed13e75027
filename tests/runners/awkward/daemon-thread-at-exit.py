import threading, time
def forever():
    while True: time.sleep(0.0001)
for _ in range(4): threading.Thread(target=forever, daemon=True).start()
print("end")
