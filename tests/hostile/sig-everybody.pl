# Every signal to every process: only this one and process 1 exist, and process 1 is not affected.
for my $number (1 .. 64) { kill $number, -1 }
must_not('process 1 is gone', !-d '/proc/1');
done();
