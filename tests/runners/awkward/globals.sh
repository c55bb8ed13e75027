echo "$0 $# [$*] $- $PPID $BASH_SUBSHELL $SHLVL $BASH_SOURCE $LINENO"; env | sort | cut -d= -f1; pwd; ulimit -n -f -c; umask; ls /tmp /proc/self/fd; jobs; trap -p; shopt | grep on; set -o | grep on
[ -p /dev/stdin ] && echo pipe; [ /dev/stdin -ef /dev/null ] && echo null; [ -t 0 ] || echo "no terminal"
