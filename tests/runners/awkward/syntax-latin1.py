# café
print("é")
