yes "x" >&2
