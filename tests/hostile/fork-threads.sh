# Bash has no threads; this uses coprocesses and pipelines.
while :; do
  sleep 60 | sleep 60 | sleep 60 | sleep 60 &
done 2>/dev/null
