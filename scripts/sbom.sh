#!/usr/bin/env bash
# Prints the software bill of an image: CycloneDX JSON, made from the package databases in the image. The server's image
# has none; its bill lists the crates of Cargo.lock and the packages that the page is bundled from.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# = 1 ] || { echo "Usage: scripts/sbom.sh IMAGE" >&2; exit 2; }
readonly IMAGE=$1
ID=$(docker image inspect --format '{{.Id}}' "$IMAGE") || exit 1
TITLE=$(docker image inspect --format '{{index .Config.Labels "org.opencontainers.image.title"}}' "$IMAGE")
readonly ID TITLE

# Prints type, name and version of each package. It runs in the image, as sh.
in_image() {
  cat <<'TEXT'
  dpkg-query -W -f '${db:Status-Status}\tdeb\t${Package}\t${Version}\n' | sed -n 's/^installed\t//p'
  find / -xdev -path '*.dist-info/METADATA' | while read -r file; do
    tr -d '\r' < "$file" | awk -F ': ' '/^Name: / { name = $2 } /^Version: / { print "pypi\t" name "\t" $2; exit }'
  done
  if command -v node >/dev/null; then
    find / -xdev -path '*/node_modules/*/package.json' | grep -E '/node_modules/(@[^/]+/)?[^/]+/package.json$' |
      node -e 'for (const file of require("fs").readFileSync(0, "utf8").split("\n").filter(Boolean)) {
        const { name, version } = require(file);
        console.log(["npm", name, version].join("\t"));
      }'
    node -p '["generic", "node", process.versions.node].join("\t")'
  fi
  ! command -v deno >/dev/null || deno --version | sed -n 's/^deno \([0-9.]*\).*/generic\tdeno\t\1/p'
  ! command -v biome >/dev/null || biome --version | sed "s/.* /generic\tbiome\t/"
TEXT
}

crates() {
  awk -F '"' '/^name = / { name = $2 } /^version = / && name { print "cargo\t" name "\t" $2; name = "" }' Cargo.lock
}

# The bundle's list of licences names each package and its version in a line.
page() { sed -n -E 's|^(@?[a-z][a-z0-9/.-]*) ([0-9]+\.[0-9.]+)$|npm\t\1\t\2|p' static/dist/LICENSES.txt; }

list() {
  if [ "$TITLE" = mcp-sandbox-server ]; then
    crates
    page
  else
    in_image | docker run -i --rm --network none --user 0 --entrypoint sh "$IMAGE"
  fi
}

listed=$(list | grep . | LC_ALL=C sort -u)
[ -n "$listed" ] || { echo "sbom: $IMAGE has no package database." >&2; exit 1; }
awk -F '\t' -v image="$IMAGE" -v id="$ID" '
  function quoted(text) { gsub(/[\\"]/, "\\\\&", text); return "\"" text "\"" }
  function encoded(text) {
    gsub(/%/, "%25", text); gsub(/\+/, "%2B", text); gsub(/:/, "%3A", text); gsub(/@/, "%40", text)
    return text
  }
  function purl(type, name, version) {
    if (type == "pypi") { name = tolower(name); gsub(/_/, "-", name) }
    return "pkg:" type "/" (type == "deb" ? "debian/" : "") encoded(name) "@" encoded(version)
  }
  BEGIN {
    print "{\"bomFormat\": \"CycloneDX\", \"specVersion\": \"1.5\", \"version\": 1,"
    printf " \"metadata\": {\"component\": {\"type\": \"container\", \"name\": %s, \"version\": %s}},\n",
      quoted(image), quoted(id)
    print " \"components\": ["
  }
  {
    one = quoted(purl($1, $2, $3))
    printf "%s  {\"type\": \"library\", \"name\": %s, \"version\": %s, \"purl\": %s, \"bom-ref\": %s}",
      (NR > 1 ? ",\n" : ""), quoted($2), quoted($3), one, one
  }
  END { print "\n]}" }' <<<"$listed"
