# Socket families: only local ones, the two of the internet (without a route) and the kernel's list of interfaces.
for my $family (0 .. 45) {
    for my $type (1, 2, 3, 5, 10) {
        next if grep { $family == $_ } 1, 2, 10;
        next if $family == 16;
        must_refuse("family $family, type $type", [41, 198], $family, $type, 0);
    }
}
must_refuse("netlink $_", [41, 198], 16, 3, $_) for 1 .. 22;
must_refuse("raw internet socket $_", [41, 198], $_, 3, 1) for 2, 10;
done();
