# Replaces its own program file while running: by nothing, a folder, a link.
for my $file (glob '/tmp/main.*') { unlink $file; symlink '/proc/1/mem', $file }
must_not('the runner is another', can_write('/opt/runner/run'));
$tried++;
done();
