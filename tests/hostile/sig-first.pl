# Every signal to process 1, repeatedly: it neither dies nor stops.
for (1 .. 50) { for my $number (1 .. 64) { kill $number, 1 } }
sleep 1;
my ($state) = text('/proc/1/stat') =~ /\) (\S)/;
must_not("process 1 is in the state $state", $state =~ /[TtZX]/);
done();
