ps -o comm= | sort | uniq -c; cat <(echo one); coproc cat; echo two >&"${COPROC[1]}"; read -r x <&"${COPROC[0]}"; echo "$x"; exec {COPROC[1]}>&-; wait
