(while :; do echo alive; sleep 0.1; done) &
kill -KILL $$
