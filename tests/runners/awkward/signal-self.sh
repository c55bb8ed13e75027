trap "echo usr1" USR1; kill -USR1 $$; kill -TERM $$; echo never
