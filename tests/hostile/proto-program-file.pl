# The program's own file, while it runs: gone, a folder, a link.
for my $file (glob '/tmp/main.*') { unlink $file; symlink '/proc/1/mem', $file }
must_not('the runner is another', can_write('/opt/runner/run'));
$tried++;
done();
