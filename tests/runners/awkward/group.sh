trap "echo term" TERM; sleep 100 & kill -TERM 0; wait; echo "$?"; kill -9 1 2>&1; echo alive
