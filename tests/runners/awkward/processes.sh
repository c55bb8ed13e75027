seen=$(ps -o comm=); grep -vx -e run -e sandbox-init <<<"$seen" | sort; cat <(echo one); coproc cat; echo two >&"${COPROC[1]}"; read -r x <&"${COPROC[0]}"; echo "$x"; exec {COPROC[1]}>&-; wait
