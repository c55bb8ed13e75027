echo a; exec sh -c "echo \$0 b; exit 11"
