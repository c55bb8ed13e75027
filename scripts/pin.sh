#!/usr/bin/env bash
# Pins the images that builds and the compose files pull: asks the registry what each tag means now, and writes the
# digest behind it (name:tag@sha256:...). Run it again to move to what the tags mean then, and build and test.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly REGISTRY=${REGISTRY:-https://registry-1.docker.io}
readonly IMAGE='(debian|rust|cloudflare/cloudflared):[A-Za-z0-9._-]+' DIGEST='@sha256:[0-9a-f]{64}'
readonly TYPES='application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json'
FILES=(build.sh quickstart.sh Dockerfile init/Dockerfile runners/*/Dockerfile docker-compose-cloudflare.yml)

usage() {
  cat <<TEXT
Usage: scripts/pin.sh           write the digests of: $(images | xargs)
       scripts/pin.sh --check   fail where one has no digest
  REGISTRY=<url>   the registry to ask, a mirror for example (default $REGISTRY)
TEXT
}

die() { echo "pin: $*" >&2; exit 1; }
ask() { curl --silent --show-error --fail-with-body --location --max-time 30 "$@"; }
images() { grep -hoE "\b$IMAGE" "${FILES[@]}" | sort -u; }

# $1: header, $2: a key in it such as realm
value_of() { sed -n -E "s/.*$2=\"([^\"]*)\".*/\1/p" <<<"$1"; }

# $1: name:tag. Prints the digest of the list of all machines' images.
resolve() {
  local name=${1%:*} tag=${1##*:} head challenge token='' url answer
  [[ $name == */* ]] || name=library/$name
  url=$REGISTRY/v2/$name/manifests/$tag
  head=$(curl --silent --show-error --head --max-time 30 "$url") || return 1
  challenge=$(grep -i '^www-authenticate:' <<<"$head" || true)
  if [ -n "$challenge" ]; then
    token=$(ask --get --data-urlencode "service=$(value_of "$challenge" service)" \
      --data-urlencode "scope=repository:$name:pull" "$(value_of "$challenge" realm)" |
      sed -n -E 's/.*"token" *: *"([^"]*)".*/\1/p') || return 1
  fi
  answer=$(ask --head -H "Accept: $TYPES" ${token:+-H "Authorization: Bearer $token"} "$url") || return 1
  grep -i '^docker-content-digest:' <<<"$answer" | grep -oE 'sha256:[0-9a-f]{64}'
}

check() {
  local bare
  bare=$(grep -nE "\b$IMAGE" "${FILES[@]}" | grep -vE "\b$IMAGE$DIGEST" || true)
  [ -z "$bare" ] || die "these have no digest; run scripts/pin.sh where a registry is in reach:"$'\n'"$bare"
}

write() {
  local image digest edits=()
  # Nothing is written before all of them are known.
  for image in $(images); do
    digest=$(resolve "$image") || die "$REGISTRY does not say what $image is; nothing was changed."
    edits+=(-e "s|\b${image//./\\.}($DIGEST)?([^A-Za-z0-9._@-]\|\$)|$image@$digest\2|g")
    echo "$image@$digest"
  done
  sed -i -E "${edits[@]}" "${FILES[@]}"
}

case "${1:-}" in
  '') write ;;
  --check) check ;;
  -h | --help) usage ;;
  *) usage >&2; exit 2 ;;
esac
