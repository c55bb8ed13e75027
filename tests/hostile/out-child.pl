# A child floods the output while its parent sleeps and has closed its own.
if (!fork) { while (1) { syswrite(STDOUT, 'x' x 65536) } }
close STDOUT; close STDERR;
sleep 1 while 1;
