# Many processes, each with a large variable.
for _ in 1 2 3 4 5 6 7 8; do
  perl -e 'my $x = "x" x (100 << 20); sleep 60' &
done
exec perl -e 'my $x = "x" x (200 << 20); my $y = "y" x (200 << 20); sleep 60'
