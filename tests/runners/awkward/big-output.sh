seq 100000; seq 20000 >&2; head -c 100000 /dev/zero
