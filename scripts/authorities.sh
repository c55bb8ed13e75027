# shellcheck shell=bash
# Carries the certificate authorities of this machine into another root file system. Sourced, not run.
#
# A company network often re-signs TLS with an authority of its own, which only this machine knows.

readonly HOST_BUNDLE=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}

# $1: a root file system with ca-certificates in it. Adds what the host trusts and Debian's package does not, one
# certificate per file, as update-ca-certificates wants them; a later run of it in a Dockerfile keeps them.
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
  # A TMPDIR of this machine need not exist there.
  env -u TMPDIR chroot "$root" update-ca-certificates >/dev/null 2>&1
}

# The Debian mirror that this machine uses, so that a site's own mirror is honoured. Only plain "main" archives of
# Debian count: on Ubuntu and with third-party sources the answer is nothing, and mmdebstrap takes its default.
# $1: "main" or "security"; a MIRROR that was named need not have the security updates.
host_mirror() {
  [ -z "${MIRROR:-}" ] || { [ "$1" = security ] || printf '%s\n' "$MIRROR"; return; }
  # shellcheck source=/dev/null
  [ "$(. /etc/os-release && printf '%s' "${ID:-}")" = debian ] || return 0
  # shellcheck disable=SC2016 # apt fills these in, not the shell
  apt-get indextargets --format '$(SITE) $(ORIGIN) $(COMPONENT) $(CODENAME)' 'Created-By: Packages' 2>/dev/null |
    awk -v wanted="$1" '
      $2 == "Debian" && $3 == "main" && $4 !~ /updates|backports/ && ($4 ~ /security/) == (wanted == "security") {
        print $1
        exit
      }'
}
