# Output that is not text: all bytes, halves of characters, terminal sequences.
syswrite(STDOUT, join('', map { chr } 0 .. 255) x 64);
syswrite(STDOUT, "\e[2J\e]0;title\a\e]52;c;aGk=\a\x9b31m\r\n\xf0\x9f\x98" x 100);
syswrite(STDERR, "\xc3" x 4097 . "\xed\xa0\x80" x 99 . "\xff\xfe");
syswrite(STDOUT, "\n");
$tried = 1;
done();
