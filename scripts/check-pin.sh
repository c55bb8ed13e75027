#!/usr/bin/env bash
# Runs scripts/pin.sh on a copy of the files that it changes, against a registry of this script's own, which wants a
# token as the public one does.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() { echo "check-pin: $*" >&2; exit 1; }
work=$(mktemp -d)
registry=
trap '[ -z "$registry" ] || kill "$registry"; rm -rf "$work" "$work.log" "$work.out"' EXIT
# Its registry is on this machine, where no proxy of the network leads.
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1

git ls-files -z build.sh quickstart.sh Dockerfile init runners scripts 'docker-compose*' |
  xargs -0 cp --parents -t "$work"
cat > "$work/registry.py" <<'TEXT'
import hashlib, http.server, json, sys, urllib.parse

GONE = sys.argv[2]

class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        here = "http://" + self.headers["Host"]
        name = self.path.removeprefix("/v2/").replace("/manifests/", ":")
        if self.path.startswith("/token"):
            return self.answer(200, {}, json.dumps({"token": self.path.split("scope=")[1]}).encode())
        scope = f"Bearer repository:{name.split(':')[0]}:pull"
        if urllib.parse.unquote(self.headers["Authorization"] or "") != scope:
            return self.answer(401, {"WWW-Authenticate": f'Bearer realm="{here}/token",service="fake"'})
        if GONE and GONE in name or "index" not in self.headers["Accept"]:
            return self.answer(404, {})
        self.answer(200, {"Docker-Content-Digest": "sha256:" + hashlib.sha256(name.encode()).hexdigest()})

    do_HEAD = do_GET

    def answer(self, status, headers, body=b""):
        self.send_response(status)
        for header in {**headers, "Content-Length": len(body)}.items():
            self.send_header(*map(str, header))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
print(server.server_port, file=open(sys.argv[1], "w"), flush=True)
server.serve_forever()
TEXT

# $1: part of the name of an image that it does not have
start_registry() {
  [ -z "$registry" ] || kill "$registry"
  rm -f "$work/port"
  python3 "$work/registry.py" "$work/port" "$1" & registry=$!
  for _ in {1..100}; do
    [ ! -s "$work/port" ] || break
    sleep 0.1
  done
  [ -s "$work/port" ] || die "its own registry did not start."
  REGISTRY=http://127.0.0.1:$(cat "$work/port")
  export REGISTRY
}
digest_of() { printf '%s' "$1" | sha256sum | cut -d ' ' -f 1; }
state() { find "$work" -type f ! -name port ! -name registry.py -exec sha256sum {} + | sort; }

before=$(state)
start_registry cloudflared
! "$work/scripts/pin.sh" >/dev/null 2>"$work.log" || die "an image that the registry lacks was pinned."
grep -q 'nothing was changed' "$work.log" || die "the error does not say that nothing was changed."
[ "$(state)" = "$before" ] || die "files were changed although an image is not known."

start_registry ''
"$work/scripts/pin.sh" > "$work.out"
"$work/scripts/pin.sh" --check || die "an image has no digest after pinning."
grep -q "^readonly PUBLIC_BASE=debian:trixie-slim@sha256:$(digest_of library/debian:trixie-slim)\$" "$work/build.sh" ||
  die "build.sh does not pull the digest."
grep -q "cloudflare/cloudflared:[0-9.]*@sha256:[0-9a-f]*}" "$work/docker-compose-cloudflare.yml" ||
  die "the compose file does not pull the digest."
pinned=$(state)
"$work/scripts/pin.sh" >/dev/null
[ "$(state)" = "$pinned" ] || die "pinning twice is not the same as pinning once."
echo "pinned: $(wc -l < "$work.out") images"
