# Prints everything readable about its own start; the test searches it for the server's secrets.
env
cat /proc/*/environ /proc/*/cmdline /proc/self/mountinfo /proc/self/cgroup /etc/hostname /etc/hosts 2>/dev/null | tr '\0' '\n'
echo "held: 1 attempts"
