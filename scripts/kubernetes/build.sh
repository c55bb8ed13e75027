# shellcheck shell=bash
# Builds Debian's source package of Kubernetes into the cache. Sourced by kubernetes-cluster.sh.

readonly KUBERNETES=1.20.2
readonly PACKAGE=1.20.5+really1.20.2-1.1+deb12u1
# Without HOME, that of the user.
readonly CACHE=${XDG_CACHE_HOME:-${HOME:-~}/.cache}/mcp-sandbox-server/kubernetes-$KUBERNETES

# What the control plane and the nodes run, and a client of the same version.
build_kubernetes() {
  mkdir -p "$CACHE/bin"
  [ -x "$CACHE/bin/kubectl" ] || fetch_client
  [ -x "$CACHE/bin/pause" ] || build_pause
  [ ! -x "$CACHE/bin/kubelet" ] || return 0
  say "building Kubernetes $KUBERNETES into $CACHE; this takes about eight minutes, once"
  install_packages golang-go rsync make gcc libc6-dev dpkg-dev patch
  local work=$CACHE/work
  rm -rf "$work"
  mkdir -p "$work"
  fetch_source "$work"
  (cd "$work" && dpkg-source --no-check -x kubernetes_*.dsc source) >"$work/log" 2>&1 ||
    die "could not unpack the source package; see $work/log."
  compile "$work/source" >>"$work/log" 2>&1 || die "could not build Kubernetes; see $work/log."
  # The kubelet comes last: its presence says that all are there.
  install -s -t "$CACHE/bin" "$work"/source/_output/bin/kube-{apiserver,controller-manager,scheduler}
  install -s -t "$CACHE/bin" "$work/source/_output/bin/kubelet"
  chmod -R u+w "$work"
  rm -rf "$work"
}

# $1: a folder. Debian's sources are read through a list of their own: this machine's need not name any.
fetch_source() {
  local mirror options
  # shellcheck disable=SC2016 # apt fills these in, not the shell
  mirror=$(apt-get indextargets --format '$(SITE) $(ORIGIN) $(COMPONENT) $(CODENAME)' 'Created-By: Packages' |
    awk '$2 == "Debian" && $3 == "main" && $4 == "bookworm" { print $1; exit }')
  [ -n "$mirror" ] || die "this machine has no mirror of Debian 12 among its package sources."
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s bookworm main\n' "$mirror" \
    >"$1/sources.list"
  mkdir -p "$1/lists/partial"
  options=(-qq -o "Dir::Etc::SourceList=$1/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$1/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
  (cd "$1" && apt-get "${options[@]}" update &&
    apt-get "${options[@]}" source --download-only "kubernetes=$PACKAGE") >&2 ||
    die "could not fetch the source package kubernetes $PACKAGE."
}

# Its package need not be installed: where another kubectl is, it could not be.
fetch_client() {
  local folder
  folder=$(mktemp -d)
  (cd "$folder" && apt-get -qq -o APT::Sandbox::User=root download "kubernetes-client=$PACKAGE" &&
    dpkg-deb -x kubernetes-client_*.deb .) >&2 || die "could not fetch Debian's kubernetes-client."
  install -t "$CACHE/bin" "$folder/usr/bin/kubectl"
  rm -rf "$folder"
}

# $1: the source. It is built in the layout of a GOPATH, as its own package does, and behind everything else.
compile() (
  cd "$1" || exit
  mkdir -p .go/src/k8s.io
  ln -sfn ../../.. .go/src/k8s.io/kubernetes
  export HOME=$1/.home GOPATH=$1/.go GOCACHE=$1/.cache GOFLAGS=-buildvcs=false GO111MODULE=off CGO_ENABLED=0
  export KUBE_GIT_VERSION=v$KUBERNETES KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=clean
  export KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
  mkdir -p "$HOME"
  cd .go/src/k8s.io/kubernetes || exit
  nice -n 10 make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet"
)

# Holds the namespaces of a pod, and takes the zombies of pods that share their processes.
build_pause() {
  install_packages gcc libc6-dev
  gcc -Os -static -s -o "$CACHE/bin/pause" -x c - <<'TEXT'
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
  signal(SIGINT, leave);
  signal(SIGTERM, leave);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
TEXT
}
