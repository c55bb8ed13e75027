nothing_like_this --x
./nor-this
/tmp/main.sh
echo "$?"
. /nowhere
