import sys
print(repr(sys.stdin.read()), sys.stdin.readline() == "", list(sys.stdin))
try: input("prompt> ")
except EOFError as error: print("EOF", error)
print(open(0).read() == "" if False else "", sys.stdin.closed)
input()
