print(f"{1 +}")
