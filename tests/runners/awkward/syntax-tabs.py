if 1:
	print(1)
        print(2)
