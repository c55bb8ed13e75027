echo "== variables"; compgen -e
echo "== reached"
ask='sb\1\0\0\1\0\0\0\0\0\0\7version\4bind\0\0\20\0\3'
for t in TARGETS; do
  (timeout 2 bash -c 'exec 3<>/dev/tcp/$0' "$t" 2>/dev/null && echo "$t") &
  case $t in */53) (timeout 2 bash -c 'exec 3<>/dev/udp/$0 && printf "$1" >&3 && read -rn1 -u3' "$t" "$ask" \
    2>/dev/null && echo "$t") & ;; esac
done; wait
command -v timeout >/dev/null && echo tried
for f in FILES; do echo "== $f"; cat "$f" 2>/dev/null; done
echo "== writable"; : > /data/self-test && echo yes
echo "== groups"; mkdir /sys/fs/cgroup/self-test 2>/dev/null && echo open
exit 0
