# File names that are hard to represent.
chdir '/data';
for my $name ("new\nline", "escape\e[2J", "\xff\xfe\x80", 'x' x 255, '..\\..\\windows', '%2e%2e%2f', '-rf', '...', ' ', "right\xe2\x80\xaeleft",
    "e\xcc\x81", "\xc3\xa9", 'quote"\';$(id)`id`', "\r\nX-Header: 1", 'CON', "tab\t", "bell\a", '<img src=x onerror=alert(1)>') {
    open(my $f, '>', $name) or die "$!"; print {$f} 'x';
}
$tried = 1;
done();
