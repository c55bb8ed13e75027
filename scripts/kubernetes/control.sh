# shellcheck shell=bash
# The networks, certificates and control plane of the test cluster. Sourced by kubernetes-cluster.sh.

readonly CONTROL=10.213.0.2 MACHINE=10.213.0.1
readonly SERVICES=10.96.0.0/16 SERVICE=10.96.0.1

node_address() { printf '10.213.0.%s\n' $((10 + $1)); }
pods_of() { printf '10.214.%s.0/24\n' "$1"; }

# nsenter, and not `ip netns exec`, which mounts another /sys and so hides the control groups.
in_control() { nsenter --net=/run/netns/sandbox-control "$@"; }

# The bridge is in the control plane's namespace, where no rule of this machine's firewall is.
make_networks() {
  ip netns add sandbox-control
  in_control ip link set lo up
  in_control ip link add bridge type bridge
  in_control ip address add "$CONTROL/24" dev bridge
  in_control ip link set bridge up
  ip link add sbxk8s type veth peer name machine netns sandbox-control
  in_control ip link set machine master bridge up
  ip address add "$MACHINE/24" dev sbxk8s
  ip link set sbxk8s up
  local node
  for ((node = 1; node <= NODES; node++)); do
    ip netns add "sandbox-node$node"
    ip link add eth0 netns "sandbox-node$node" type veth peer name "node$node" netns sandbox-control
    in_control ip link set "node$node" master bridge up
    in_control ip route add "$(pods_of "$node")" via "$(node_address "$node")"
    ip route add "$(pods_of "$node")" via "$(node_address "$node")"
    make_node_network "$node"
  done
}

# Pods reach each other, the API server at its service's address, and this machine: what an open cluster allows.
make_node_network() {
  local enter=(nsenter "--net=/run/netns/sandbox-node$1") other
  "${enter[@]}" ip link set lo up
  "${enter[@]}" ip address add "$(node_address "$1")/24" dev eth0
  "${enter[@]}" ip link set eth0 up
  "${enter[@]}" ip route add default via "$MACHINE"
  for ((other = 1; other <= NODES; other++)); do
    [ "$other" = "$1" ] || "${enter[@]}" ip route add "$(pods_of "$other")" via "$(node_address "$other")"
  done
  "${enter[@]}" sysctl -qw net.ipv4.ip_forward=1
  "${enter[@]}" iptables -t nat -A PREROUTING -d "$SERVICE" -p tcp --dport 443 -j DNAT --to-destination "$CONTROL:6443"
  "${enter[@]}" iptables -t nat -A OUTPUT -d "$SERVICE" -p tcp --dport 443 -j DNAT --to-destination "$CONTROL:6443"
}

remove_networks() {
  local node
  ip link del sbxk8s 2>/dev/null || true
  for node in control node{1..9}; do
    [ ! -e "/run/netns/sandbox-$node" ] || ip netns del "sandbox-$node"
  done
}

make_certificates() {
  local keys=$STATE/keys node
  mkdir -p "$keys"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=sandbox-cluster \
    -keyout "$keys/ca.key" -out "$keys/ca.crt" 2>/dev/null
  openssl genrsa -out "$keys/accounts.key" 2048 2>/dev/null
  certify apiserver /CN=kube-apiserver \
    "DNS:kubernetes,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:$CONTROL,IP:$SERVICE"
  certify admin /O=system:masters/CN=admin
  certify controller-manager /CN=system:kube-controller-manager
  certify scheduler /CN=system:kube-scheduler
  for ((node = 1; node <= NODES; node++)); do
    certify "node$node" "/O=system:nodes/CN=system:node:node$node"
  done
}

# A certificate and, for a client, its KUBECONFIG. $1: its name, $2: the subject, $3: names of a server
certify() {
  local keys=$STATE/keys
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$2" -keyout "$keys/$1.key" \
    -out "$keys/$1.csr" 2>/dev/null
  # With an extension it is of version 3: rustls takes no other.
  printf 'basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth,serverAuth\n%s\n' "${3:+subjectAltName=$3}" \
    >"$keys/$1.ext"
  openssl x509 -req -in "$keys/$1.csr" -CA "$keys/ca.crt" -CAkey "$keys/ca.key" -CAcreateserial -days 30 \
    -extfile "$keys/$1.ext" -out "$keys/$1.crt" 2>/dev/null
  cat >"$STATE/$1.kubeconfig" <<TEXT
apiVersion: v1
kind: Config
current-context: sandbox
clusters:
  - name: sandbox
    cluster: {server: "https://$CONTROL:6443", certificate-authority-data: $(base64 -w0 "$keys/ca.crt")}
contexts:
  - {name: sandbox, context: {cluster: sandbox, user: $1, namespace: sandbox}}
users:
  - name: $1
    user:
      client-certificate-data: $(base64 -w0 "$keys/$1.crt")
      client-key-data: $(base64 -w0 "$keys/$1.key")
TEXT
  chmod 600 "$STATE/$1.kubeconfig"
}

start_control() {
  local keys=$STATE/keys
  launch etcd nsenter --net=/run/netns/sandbox-control etcd --data-dir "$STATE/etcd" --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380
  start_apiserver
  await 60 "the API server" kubectl get --raw /readyz
  launch kube-controller-manager nsenter --net=/run/netns/sandbox-control "$CACHE/bin/kube-controller-manager" \
    --kubeconfig "$STATE/controller-manager.kubeconfig" --service-account-private-key-file "$keys/accounts.key" \
    --root-ca-file "$keys/ca.crt" --use-service-account-credentials --leader-elect=false
  launch kube-scheduler nsenter --net=/run/netns/sandbox-control "$CACHE/bin/kube-scheduler" \
    --kubeconfig "$STATE/scheduler.kubeconfig" --leader-elect=false
}

# A function of its own: tests end it for a while and start it again.
start_apiserver() {
  local keys=$STATE/keys
  launch kube-apiserver nsenter --net=/run/netns/sandbox-control "$CACHE/bin/kube-apiserver" \
    --etcd-servers http://127.0.0.1:2379 --secure-port 6443 --advertise-address "$CONTROL" --allow-privileged \
    --tls-cert-file "$keys/apiserver.crt" --tls-private-key-file "$keys/apiserver.key" \
    --client-ca-file "$keys/ca.crt" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --kubelet-client-certificate "$keys/admin.crt" --kubelet-client-key "$keys/admin.key" \
    --kubelet-preferred-address-types InternalIP --service-cluster-ip-range "$SERVICES" \
    --service-account-key-file "$keys/accounts.key" --service-account-signing-key-file "$keys/accounts.key" \
    --service-account-issuer https://kubernetes.default.svc
}

# etcd is the last, since the others wait for it.
stop_control() {
  local name
  for name in kube-scheduler kube-controller-manager kube-apiserver etcd; do end "$name"; done
}
