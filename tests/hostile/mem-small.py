kept = None
while True:
    kept = (kept, object())
