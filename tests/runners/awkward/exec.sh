echo a; exec python_is_not_here
echo never
