tr '\0' x </dev/zero
