# Nested folders, deeper than any path can name.
chdir '/data';
for (1 .. 3000) { mkdir 'd' x 100 or last; chdir 'd' x 100 or last }
open(my $f, '>', 'bottom'); print {$f} 'x';
$tried = 1;
done();
