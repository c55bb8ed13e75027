setsid sleep 1000 &
echo "held: 1 attempts"
