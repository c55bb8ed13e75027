deeper() { deeper "$@" "$@"; }
deeper xxxxxxxx
