# shellcheck shell=bash
# A node of the test cluster: its namespaces, containerd and kubelet. Sourced by kubernetes-cluster.sh.

# Settings of the kernel that a kubelet changes.
readonly KERNEL=(vm.overcommit_memory kernel.panic kernel.panic_on_oops)

# Runs in the node's namespaces. $1: the node, then the command.
on_node() {
  local holder
  holder=$(cat "$STATE/pids/holder$1")
  shift
  nsenter --target "$holder" --mount --net "$@"
}

start_node() {
  local node=$1 root=$STATE/node$1
  mkdir -p "$root"/{log/pods,log/containers,kubelet/seccomp,cni/open,cni/closed,pods} "$STATE"/{cni-bin,shared} \
    /var/log/pods /var/log/containers
  [ -e "$STATE/sysctl" ] || sysctl "${KERNEL[@]}" >"$STATE/sysctl"
  write_networks "$node"
  write_containerd "$node"
  write_kubelet "$node"
  # Kubelets remove logs of pods that they do not know, so each has its own folder of them. What containerd
  # leaves of the pods' namespaces ends with the node's.
  # shellcheck disable=SC2016 # the inner shell fills these in
  launch "holder$node" nsenter "--net=/run/netns/sandbox-node$node" unshare --mount --propagation private sh -c '
    mount --make-rshared /
    mount --bind "$1/log/pods" /var/log/pods
    mount --bind "$1/log/containers" /var/log/containers
    mount -t tmpfs -o mode=755 tmpfs /run/netns
    touch "$1/held"
    exec sleep infinity' sh "$root"
  await 10 "the namespaces of node$node" test -e "$root/held"
  start_containerd "$node"
  import_pause "$node"
  make_groups "$node"
  start_kubelet "$node"
}

# Functions of their own, as those of the API server: tests end both for a while. Containers go on meanwhile.
start_containerd() {
  local root=$STATE/node$1
  launch "containerd$1" nsenter --target "$(cat "$STATE/pids/holder$1")" --mount --net \
    containerd --config "$root/containerd.toml"
  await 30 "containerd of node$1" on_node "$1" ctr --address "$root/containerd.sock" version
}

start_kubelet() {
  local root=$STATE/node$1
  launch "kubelet$1" nsenter --target "$(cat "$STATE/pids/holder$1")" --mount --net "$CACHE/bin/kubelet" \
    --config "$root/kubelet.yaml" --kubeconfig "$STATE/node$1.kubeconfig" --hostname-override "node$1" \
    --node-ip "$(node_address "$1")" --root-dir "$root/kubelet" --container-runtime remote \
    --container-runtime-endpoint "unix://$root/containerd.sock"
}

# Pods of the usual runtime class have a network that is open, or what policies leave of it (policies.py). Those of the
# class `closed` have a loopback and nothing else: containerd asks for an address and does not look for it.
write_networks() {
  local root=$STATE/node$1
  find /usr/lib/cni -type f -exec ln -sf -t "$STATE/cni-bin" {} +
  cat >"$STATE/cni-bin/closed" <<'TEXT'
#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
  VERSION) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}' ;;
  ADD)
    printf '{"cniVersion": "0.4.0", "interfaces": [{"name": "%s", "sandbox": "%s"}], %s}\n' "$CNI_IFNAME" "$CNI_NETNS" \
      '"ips": [{"version": "4", "address": "192.0.2.1/32", "interface": 0}]' ;;
esac
TEXT
  # The plugin `bridge`. Where policies are on, they hold for a pod before its containers start.
  cat >"$STATE/cni-bin/open$1" <<TEXT
#!/bin/sh
pod="$root/pods/\$CNI_CONTAINERID"
if [ "\$CNI_COMMAND" != ADD ]; then
  "$STATE/cni-bin/bridge"
  status=\$?
  [ "\$CNI_COMMAND" != DEL ] || rm -f "\$pod"
  exit \$status
fi
answer=\$("$STATE/cni-bin/bridge") || { printf '%s\n' "\$answer"; exit 1; }
printf '%s\n%s\n' "\$CNI_ARGS" "\$answer" >"$root/\$CNI_CONTAINERID"
mv "$root/\$CNI_CONTAINERID" "\$pod"
if [ -e "$STATE/policies" ] &&
  ! why=\$(PATH="$CACHE/bin:\$PATH" "$HERE/kubernetes/policies.py" "$root" "\$CNI_CONTAINERID" 2>&1); then
  printf '{"cniVersion": "0.4.0", "code": 100, "msg": "%s"}\n' "\$(printf '%s' "\$why" | tr '"\\\\\n' '   ')"
  exit 1
fi
printf '%s\n' "\$answer"
TEXT
  chmod 755 "$STATE"/cni-bin/{closed,"open$1"}
  cat >"$root/cni/closed/10-closed.conflist" <<TEXT
{"cniVersion": "0.4.0", "name": "closed", "plugins": [{"type": "closed"}]}
TEXT
  cat >"$root/cni/open/10-open.conflist" <<TEXT
{"cniVersion": "0.4.0", "name": "open", "plugins": [{
  "type": "open$1", "bridge": "pods", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "dataDir": "$root/cni/addresses", "ranges": [[{"subnet": "$(pods_of "$1")"}]],
    "routes": [{"dst": "0.0.0.0/0"}]}}]}
TEXT
}

write_containerd() {
  local root=$STATE/node$1
  cat >"$root/containerd.toml" <<TEXT
version = 2
root = "$root/containerd"
state = "$root/run"
[grpc]
  address = "$root/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$root/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "sandbox.local/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$STATE/cni-bin"
    conf_dir = "$root/cni/open"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.closed]
    runtime_type = "io.containerd.runc.v2"
    cni_conf_dir = "$root/cni/closed"
    cni_max_conf_num = 1
TEXT
}

# Images cannot be fetched again, so none is ever removed for space.
write_kubelet() {
  cat >"$STATE/node$1/kubelet.yaml" <<TEXT
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_address "$1")
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $STATE/keys/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /sandbox-node$1
oomScoreAdj: 0
resolvConf: ""
clusterDomain: cluster.local
failSwapOn: false
podPidsLimit: ${CLUSTER_POD_PIDS:-128}
maxPods: 200
registryPullQPS: 0
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
serializeImagePulls: false
TEXT
}

# The kubelet wants its group in every hierarchy.
make_groups() {
  local hierarchy
  for hierarchy in $(groups_of "$1"); do
    mkdir -p "$hierarchy"
    # A group of cpuset without processors takes no process.
    case $hierarchy in
      */cpuset/*)
        cat "$(dirname "$hierarchy")/cpuset.cpus" >"$hierarchy/cpuset.cpus"
        cat "$(dirname "$hierarchy")/cpuset.mems" >"$hierarchy/cpuset.mems"
        ;;
    esac
  done
}

# $1: the node. Its group in each hierarchy.
groups_of() {
  awk -v name="sandbox-node$1" '$3 == "cgroup" || $3 == "cgroup2" { print $2 "/" name }' /proc/mounts
}

# An archive as `docker save` writes it, with the one file.
import_pause() {
  local work=$STATE/pause layer
  mkdir -p "$work"
  tar -C "$CACHE/bin" --owner=0 --group=0 -cf "$work/layer.tar" pause
  layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  printf '{"architecture": "%s", "os": "linux", "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' "$(dpkg --print-architecture)" "$layer" \
    >"$work/config.json"
  printf '[{"Config": "config.json", "RepoTags": ["sandbox.local/pause:1"], "Layers": ["layer.tar"]}]' \
    >"$work/manifest.json"
  tar -C "$work" -c manifest.json config.json layer.tar |
    on_node "$1" ctr --address "$STATE/node$1/containerd.sock" -n k8s.io images import - >/dev/null ||
    die "could not load the pause image into node$1."
}

# What policies say holds for the pods of a node, or all are free, by the file `policies`. $1: the node, $2: on or off
switch_policies() {
  local enforce=(nsenter --target "$(cat "$STATE/pids/holder$1")" --net env "PATH=$CACHE/bin:$PATH"
    "$HERE/kubernetes/policies.py" "$STATE/node$1")
  end "policies$1"
  "${enforce[@]}" || return
  [ "$2" = off ] || launch "policies$1" "${enforce[@]}" --watch
}

# The kubelet first, so that it starts nothing again; then the containers, their shims and what they mounted.
stop_node() {
  local node=$1 root=$STATE/node$1 id group left
  end "policies$node"
  end "kubelet$node"
  if runs "holder$node" && runs "containerd$node"; then
    local ctr=(ctr --address "$root/containerd.sock" -n k8s.io)
    for id in $(on_node "$node" "${ctr[@]}" tasks list -q); do
      on_node "$node" timeout 10 "${ctr[@]}" tasks delete --force "$id" >/dev/null 2>&1 || true
    done
  fi
  end "containerd$node"
  # Shims outlive containerd; each has the socket of its own in its arguments.
  for id in $(pgrep -f "containerd-shim.* -address $root/containerd.sock" || true); do kill -KILL "$id" || true; done
  end "holder$node"
  for group in $(groups_of "$node"); do
    [ -d "$group" ] || continue
    for ((left = 20; left > 0; left--)); do
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$group" ] || break
      sleep 0.1
    done
  done
  if [ -e "$STATE/sysctl" ]; then sysctl -q -p "$STATE/sysctl"; fi
}
