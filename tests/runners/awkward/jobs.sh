set -m; sleep 0.2 & sleep 100 & disown; wait %1; echo "$?"; (sleep 100; echo late) & echo over
