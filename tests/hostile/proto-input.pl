# Standard input is at its end, and writing there has no effect.
my $count = sysread(STDIN, my $piece, 4096);
must_not("input of $count bytes", $count) if defined $count;
must_not('its input takes bytes', defined syswrite(STDIN, "\x84\0\0\0\x0c{\"status\":0}") && -p STDIN);
done();
