trap "echo trapped; exit 5" EXIT
false
exit 3
