print("before")
raise SystemExit(41)
