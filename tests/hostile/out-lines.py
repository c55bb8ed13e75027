while True:
    print("all work and no play " * 50)
