printf '\x84\0\0\0\x0c{"status":0}\x85\0\0\0\x0f{"message":"x"}\x81\0\0\0\x0e{"protocol":1}\x82\xff\xff\xff\xff'
exit 3
