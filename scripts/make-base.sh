#!/usr/bin/env bash
# Makes the image sandbox-base:trixie only from Debian packages, for machines that can reach a Debian mirror but no
# container registry. The runner images build from it as from debian:trixie-slim.
#
# The certificate authorities of this machine are carried into the image, so that pip and npm work in builds there too.
set -euo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
readonly SELF
export PROGRAM=make-base
# shellcheck source=scripts/provision.sh
. "$(dirname "$SELF")/provision.sh"
# shellcheck source=scripts/authorities.sh
. "$(dirname "$SELF")/authorities.sh"
readonly IMAGE=sandbox-base:trixie
readonly SUITE=trixie
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

usage() {
  cat <<TEXT
Usage: scripts/make-base.sh
Builds $IMAGE with mmdebstrap and loads it into Docker. Needs root or sudo, on Debian or Ubuntu.
  MIRROR=<url>   Debian mirror to use; by default the host's own where the host is Debian.
TEXT
}

install_tools() {
  local missing=()
  has mmdebstrap || missing+=(mmdebstrap)
  [ -r "$KEYRING" ] || missing+=(debian-archive-keyring)
  install_packages "${missing[@]}"
}

main() {
  case "${1:-}" in
    '') ;;
    -h | --help) usage; return ;;
    *) usage >&2; exit 2 ;;
  esac
  if ! is_root; then
    has sudo ||
      die "needs root to make a root file system; run it as root, or set BASE to an image you have."
    # The docker command of root then uses the engine of this user, also one that a context names.
    local name passed=("DOCKER_CONFIG=${DOCKER_CONFIG:-$HOME/.docker}")
    for name in MIRROR DOCKER_{HOST,CONTEXT,TLS_VERIFY,CERT_PATH} SSL_CERT_FILE "${PROXIES[@]}"; do
      [ -z "${!name:-}" ] || passed+=("$name=${!name}")
    done
    exec sudo env "${passed[@]}" "$SELF"
  fi
  docker version >/dev/null 2>&1 ||
    die "cannot reach a Docker engine; start it, or set DOCKER_HOST, and run this again."
  install_tools

  # Every user may read the files of the image.
  umask 022
  local folder
  folder=$(temporary_folder) || exit
  # Global, not local: the trap outlives this function.
  work=$(mktemp -d "$folder/sandbox-base.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  local mirror security sources=()
  mirror=$(host_mirror main)
  security=$(host_mirror security)
  [ -z "$mirror" ] || sources=("deb $mirror $SUITE main")
  [ -z "$security" ] || sources+=("deb $security $SUITE-security main")
  say "building $IMAGE${mirror:+ from $mirror}"
  mkdir "$work/root"
  # --mode=root so that the result does not depend on user namespaces, which many hosts disable. The options stay in the
  # image, as in Debian's own: installing does not wait for the disk, fetch translations or keep archives.
  mmdebstrap --quiet --mode=root --variant=minbase --keyring="$KEYRING" --include=ca-certificates \
    --aptopt='Acquire::Languages "none"' --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$SUITE" "$work/root" "${sources[@]}" || die "mmdebstrap failed; is a Debian mirror reachable?"
  echo 'APT::Keep-Downloaded-Packages "false";' > "$work/root/etc/apt/apt.conf.d/99keep-no-archives"
  add_host_authorities "$work/root" || die "could not add the host's certificate authorities."
  rm -rf "$work/root/var/lib/apt/lists/"* "$work/root/var/cache/apt/"*.bin
  tar -C "$work/root" --numeric-owner --one-file-system -c . |
    docker import -c 'CMD ["bash"]' \
      -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$IMAGE" >/dev/null
  say "$IMAGE is ready"
}

main "$@"
