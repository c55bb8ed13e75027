perl -e '("a" x 60 . "b") =~ /^(a|aa|a?)+$(?{1})/; 1 while 1'
