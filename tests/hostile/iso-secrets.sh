# Everything that it can read about how it was started; the test looks for the server's secrets in it.
env
cat /proc/*/environ /proc/*/cmdline /proc/self/mountinfo /proc/self/cgroup /etc/hostname /etc/hosts 2>/dev/null | tr '\0' '\n'
echo "held: 1 attempts"
