#!/usr/bin/env bash
# A real Kubernetes cluster of two nodes on this machine, for the tests that KUBECONFIG turns on.
#
# On Debian 12, as root, it is Debian's own source package: the API server, controller manager, scheduler and kubelet
# are built once into the cache folder, and run with Debian's etcd, containerd, runc and CNI plugins. Each node has a
# network namespace, a mount namespace, a containerd and a control group of its own, so a Docker engine beside it is not
# touched. On other machines the cluster is made by kind.
#
#   control plane   namespace sandbox-control   10.213.0.2      etcd, API server, controller manager, scheduler
#   nodes           namespaces sandbox-node1/2  10.213.0.11/12  containerd, kubelet
#   this machine                                10.213.0.1      reaches the API server and, through it, attach
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE
# Read by provision.sh.
export PROGRAM=kubernetes-cluster
# shellcheck source=scripts/provision.sh
. "$HERE/provision.sh"
# shellcheck source=scripts/kubernetes/build.sh
. "$HERE/kubernetes/build.sh"
# shellcheck source=scripts/kubernetes/control.sh
. "$HERE/kubernetes/control.sh"
# shellcheck source=scripts/kubernetes/node.sh
. "$HERE/kubernetes/node.sh"
# shellcheck source=scripts/kubernetes/objects.sh
. "$HERE/kubernetes/objects.sh"

# Containers' file systems are below it, so it is on a disk that overlayfs can use.
readonly STATE=${CLUSTER_STATE:-/var/lib/sandbox-cluster}
NODES=${CLUSTER_NODES:-2}
readonly NODES
readonly KIND=${CLUSTER_KIND_NAME:-sandbox}

usage() {
  cat <<TEXT
Usage: scripts/kubernetes-cluster.sh up | down | load IMAGE... | stop PART | start PART | policies on|off |
         kubeconfig | env | kubectl ARGUMENT...
  up           makes the cluster and waits until every node is ready; does nothing where it runs
  down         ends it and removes what it made, except the cache
  load         copies images of the Docker engine to every node
  stop, start  ends the API server (apiserver), or the kubelet and the runtime of a node, by its name, as a crash does;
               starts them again and waits until they answer
  policies     has every node enforce NetworkPolicies, or none, which is so after up; for Debian's cluster alone
  kubeconfig   prints the path of the operator's KUBECONFIG
  env          prints what the tests need in their environment
Takes root on Debian 12 (8 minutes and 3 GB the first time); elsewhere kind and kubectl.
CLUSTER_NODES=1 makes one node. CLUSTER_BY=debian|kind chooses the way.
TEXT
}

# How the cluster is made here.
way() {
  [ -z "${CLUSTER_BY:-}" ] || { printf '%s\n' "$CLUSTER_BY"; return; }
  # shellcheck source=/dev/null
  if [ "$(. /etc/os-release && printf '%s' "${ID:-}${VERSION_ID:-}")" = debian12 ] && is_root; then
    printf 'debian\n'
  else
    printf 'kind\n'
  fi
}

kubectl() {
  local client=$CACHE/bin/kubectl
  [ -x "$client" ] || client=$(type -P kubectl) || die "there is no kubectl; install kubernetes-client."
  KUBECONFIG=$(kubeconfig) "$client" "$@"
}

kubeconfig() {
  printf '%s/admin.kubeconfig\n' "$STATE"
}

# $1: seconds, $2: what is awaited, then a command that succeeds when it is there.
await() {
  local limit=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $limit ] || die "$what did not come; the logs are in $STATE/log."
    sleep 0.2
  done
}

# Runs a long-lived process. $1: its name, then its command.
launch() {
  local name=$1
  shift
  mkdir -p "$STATE/log" "$STATE/pids"
  setsid nohup "$@" >"$STATE/log/$name" 2>&1 </dev/null &
  printf '%s\n' $! >"$STATE/pids/$name"
}

# Whether a process lives; one that has ended and was not waited for does not.
lives() {
  local fields
  read -r fields <"/proc/$1/stat" && [[ $fields != *') Z '* ]]
} 2>/dev/null

runs() {
  local pid
  pid=$(cat "$STATE/pids/$1" 2>/dev/null) && lives "$pid"
}

# $1: the name of a process that launch started, $2: a signal.
end() {
  local pid left
  pid=$(cat "$STATE/pids/$1" 2>/dev/null) || return 0
  kill "-${2:-TERM}" "$pid" 2>/dev/null || true
  for ((left = 50; left > 0; left--)); do
    lives "$pid" || break
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
  rm -f "$STATE/pids/$1"
}

up_debian() {
  ! runs kube-apiserver || { say "the cluster runs already: KUBECONFIG=$(kubeconfig)"; return; }
  down_debian
  build_kubernetes
  install_packages etcd-server containerd runc containernetworking-plugins iproute2 iptables nftables openssl python3
  mkdir -p "$STATE"
  make_networks
  make_certificates
  start_control
  local node
  for ((node = 1; node <= NODES; node++)); do start_node "$node"; done
  for ((node = 1; node <= NODES; node++)); do
    await 90 "node$node" kubectl wait --for=condition=Ready "node/node$node" --timeout=1s
  done
  make_objects
}

down_debian() {
  [ -d "$STATE" ] || return 0
  local node
  for ((node = 1; node <= 9; node++)); do [ ! -d "$STATE/node$node" ] || stop_node "$node"; done
  stop_control
  remove_networks
  rm -rf --one-file-system "$STATE"
}

load_debian() {
  local image node
  for image in "$@"; do
    for ((node = 1; node <= NODES; node++)); do
      [ -d "$STATE/node$node" ] || continue
      docker save "$image" | on_node "$node" "$(type -P ctr)" --address "$STATE/node$node/containerd.sock" -n k8s.io \
        images import - >/dev/null || die "could not load $image into node$node."
    done
    say "loaded $image"
  done
}

# A kubelet that ends in order could still report what it does.
stop_debian() {
  local node=${1#node}
  runs kube-apiserver || die "the cluster does not run here; start it by up."
  if [ "$1" = apiserver ]; then
    end kube-apiserver KILL
  else
    runs "kubelet$node" || die "there is no node $1 that runs."
    end "kubelet$node" KILL
    end "containerd$node" KILL
  fi
}

start_debian() {
  local node=${1#node}
  if [ "$1" = apiserver ]; then
    runs kube-apiserver || start_apiserver
  else
    runs "containerd$node" || start_containerd "$node"
    runs "kubelet$node" || start_kubelet "$node"
  fi
  await_part "$1"
}

policies_debian() {
  runs kube-apiserver || die "the cluster does not run here; start it by up."
  local node
  if [ "$1" = on ]; then touch "$STATE/policies"; else rm -f "$STATE/policies"; fi
  for ((node = 1; node <= NODES; node++)); do
    switch_policies "$node" "$1" && continue
    [ "$1" = off ] || policies_debian off
    die "the policies could not be switched $1."
  done
}

# Of a node that has been away for a short time only, the cluster still says that it is ready; so its kubelet is asked.
await_part() {
  await 60 "the API server" kubectl get --raw /readyz
  [ "$1" != apiserver ] || return 0
  await 90 "the kubelet of $1" kubectl get --raw "/api/v1/nodes/$1/proxy/healthz"
  await 90 "$1" kubectl wait --for=condition=Ready "node/$1" --timeout=1s
}

up_kind() {
  has kind || die "on this machine the cluster is made by kind; install it and kubectl, and run this again."
  mkdir -p "$STATE"
  if ! kind get clusters 2>/dev/null | grep -qx "$KIND"; then
    local node roles='  - role: control-plane'
    for ((node = 1; node <= NODES; node++)); do roles+=$'\n  - role: worker'; done
    mkdir -p "$STATE/shared"
    kind create cluster --name "$KIND" --kubeconfig "$(kubeconfig)" --wait 120s --config <(cat <<TEXT
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
kubeadmConfigPatches:
  - |
    apiVersion: kubelet.config.k8s.io/v1beta1
    kind: KubeletConfiguration
    podPidsLimit: ${CLUSTER_POD_PIDS:-128}
nodes:
${roles//worker/worker$'\n'    extraMounts: [{hostPath: $STATE/shared, containerPath: $STATE/shared\}]}
TEXT
    )
  fi
  make_objects
}

down_kind() {
  kind delete cluster --name "$KIND" && rm -rf "$STATE"
}

load_kind() {
  kind load docker-image --name "$KIND" "$@"
}

# The kubelet of the control plane runs the API server for as long as it has this file.
stop_kind() {
  if [ "$1" = apiserver ]; then
    docker exec "$KIND-control-plane" mv /etc/kubernetes/manifests/kube-apiserver.yaml /etc/kubernetes/ >&2
    until ! kubectl get --raw /livez >/dev/null 2>&1; do sleep 0.2; done
  else
    docker exec "$1" systemctl stop kubelet containerd >&2
  fi
}

start_kind() {
  if [ "$1" = apiserver ]; then
    docker exec "$KIND-control-plane" mv /etc/kubernetes/kube-apiserver.yaml /etc/kubernetes/manifests/ >&2
  else
    docker exec "$1" systemctl start containerd kubelet >&2
  fi
  await_part "$1"
}

policies_kind() {
  die "kind's own network plugin enforces NetworkPolicies, from kind 0.24 on; they cannot be switched."
}

main() {
  local command=${1:-}
  [ $# -eq 0 ] || shift
  case $command in
    up | down | load) "${command}_$(way)" "$@" ;;
    stop | start)
      [ $# = 1 ] || { usage >&2; exit 2; }
      "${command}_$(way)" "$1"
      ;;
    policies)
      [[ "$*" =~ ^(on|off)$ ]] || { usage >&2; exit 2; }
      "policies_$(way)" "$1"
      ;;
    kubeconfig) kubeconfig ;;
    env) environment ;;
    kubectl) kubectl "$@" ;;
    -h | --help) usage ;;
    *) usage >&2; exit 2 ;;
  esac
}

main "$@"
