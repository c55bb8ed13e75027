print(1)
