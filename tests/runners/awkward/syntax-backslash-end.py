print(1)
\