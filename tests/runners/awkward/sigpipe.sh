yes | head -n 2; echo "${PIPESTATUS[*]}"
