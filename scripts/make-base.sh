#!/usr/bin/env bash
# Makes the image sandbox-base:bookworm only from Debian packages, for machines that can reach a Debian mirror but no
# container registry. The runner images build from it as from debian:bookworm-slim.
#
# Some networks re-sign TLS with their own certificate authority, which only the host knows. Every authority that the
# host trusts beyond Debian's own set is therefore copied into the image, so that pip and npm work in builds.
set -euo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
readonly SELF
readonly IMAGE=sandbox-base:bookworm
readonly SUITE=bookworm
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
readonly HOST_BUNDLE=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}

usage() {
  cat <<TEXT
Usage: scripts/make-base.sh
Builds $IMAGE with mmdebstrap and loads it into Docker. Needs root or sudo, on Debian or Ubuntu.
  MIRROR=<url>   Debian mirror to use; by default the host's own where the host is Debian.
TEXT
}

die() { printf 'make-base: %s\n' "$*" >&2; exit 1; }

install_tools() {
  local missing=()
  command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
  [ -r "$KEYRING" ] || missing+=(debian-archive-keyring)
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || die "needs ${missing[*]}; install them, or set BASE to an image you have and run build.sh."
  echo "make-base: installing ${missing[*]}" >&2
  apt-get update -qq >&2 || die "apt-get update failed; check this machine's package sources."
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "could not install ${missing[*]}; install them by hand and run this again."
}

# Prints the mirror that this machine uses, so that a local mirror is respected. Only plain "main" archives of Debian
# count: on Ubuntu and with third-party sources it prints nothing, and mmdebstrap uses its default.
host_mirror() {
  [ -n "${MIRROR:-}" ] && { printf '%s\n' "$MIRROR"; return; }
  # shellcheck source=/dev/null
  [ "$(. /etc/os-release && printf '%s' "${ID:-}")" = debian ] || return 0
  # shellcheck disable=SC2016 # apt expands these, not the shell
  apt-get indextargets --format '$(SITE) $(ORIGIN) $(COMPONENT) $(CODENAME)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 == "Debian" && $3 == "main" && $4 !~ /security|updates|backports/ { print $1; exit }'
}

# $1: the new root. Adds what the host trusts and Debian's ca-certificates does not, one certificate per file, as
# update-ca-certificates requires them; a later run of it in a Dockerfile keeps them.
add_host_authorities() {
  local root=$1 dir=$1/usr/local/share/ca-certificates
  [ -r "$HOST_BUNDLE" ] || return 0
  mkdir -p "$dir"
  awk -v dir="$dir" '
    /^-----BEGIN CERTIFICATE-----/ { pem = "" }
    { pem = pem $0 "\n" }
    /^-----END CERTIFICATE-----/ {
      if (FNR == NR) known[pem] = 1
      else if (!(pem in known)) { known[pem] = 1; file = dir "/host-" ++n ".crt"; printf "%s", pem > file; close(file) }
    }' "$root/etc/ssl/certs/ca-certificates.crt" "$HOST_BUNDLE"
  chroot "$root" update-ca-certificates >/dev/null 2>&1 || die "could not add the host's certificate authorities."
}

main() {
  case "${1:-}" in
    '') ;;
    -h | --help) usage; return ;;
    *) usage >&2; exit 2 ;;
  esac
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null ||
      die "needs root to make a root file system; run it as root, or set BASE to an image you have."
    exec sudo env ${MIRROR:+"MIRROR=$MIRROR"} ${DOCKER_HOST:+"DOCKER_HOST=$DOCKER_HOST"} "$SELF"
  fi
  docker version >/dev/null 2>&1 || die "cannot reach a Docker engine; start it, or set DOCKER_HOST, and run this again."
  install_tools

  # Global, not local: the trap outlives this function.
  work=$(mktemp -d "${TMPDIR:-/tmp}/sandbox-base.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  local mirror
  mirror=$(host_mirror)
  echo "make-base: building $IMAGE${mirror:+ from $mirror}" >&2
  mkdir "$work/root"
  # --mode=root so that the result does not depend on user namespaces, which many hosts disable.
  mmdebstrap --quiet --mode=root --variant=minbase --keyring="$KEYRING" --include=ca-certificates \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$SUITE" "$work/root" ${mirror:+"$mirror"} || die "mmdebstrap failed; is a Debian mirror reachable?"
  add_host_authorities "$work/root"
  rm -rf "$work/root/var/lib/apt/lists/"* "$work/root/var/cache/apt/"*.bin
  tar -C "$work/root" --numeric-owner --one-file-system -c . |
    docker import -c 'CMD ["bash"]' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$IMAGE" >/dev/null
  echo "make-base: $IMAGE is ready" >&2
}

main "$@"
