# shellcheck disable=SC2034
kept=$(head -c 1G /dev/zero | gzip -1 | gunzip | tr '\0' x)
sleep 60
