# Files above the size limit, sparse and with content.
open(my $f, '+>', '/data/huge') or die;
must_not('a file of a terabyte', truncate($f, 1 << 40));
sysseek($f, 1 << 40, 0);
must_not('a byte beyond the limit', syswrite($f, 'x'));
must_refuse('fallocate', [285, 47], fileno($f), 1, 0, 10 << 30);
must_not('more blocks than it wrote', ((stat $f)[12] // 0) > 64);
done();
