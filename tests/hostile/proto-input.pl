# Its input is over, and what it writes there goes nowhere.
my $count = sysread(STDIN, my $piece, 4096);
must_not("input of $count bytes", $count) if defined $count;
must_not('its input takes bytes', defined syswrite(STDIN, "\x84\0\0\0\x0c{\"status\":0}") && -p STDIN);
done();
