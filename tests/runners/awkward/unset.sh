set -u
echo "$nothing"
echo never
