# shellcheck shell=bash
# What the tests find in the cluster. Sourced by kubernetes-cluster.sh.

# Namespaces: `sandbox` for sandboxes, closed by the policies of the plain manifests where policies are enforced;
# `sandbox-system` for servers. The runtime class `closed` has no network. The claim `sandbox-data` is a folder of this
# machine that every node sees.
make_objects() {
  [ "$(way)" = kind ] || kubectl apply -f - >/dev/null <<TEXT
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: closed}
handler: closed
TEXT
  kubectl apply -f - >/dev/null <<TEXT || die "could not make the objects of the tests."
apiVersion: v1
kind: Namespace
metadata: {name: sandbox}
---
apiVersion: v1
kind: Namespace
metadata: {name: sandbox-system}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: sandbox-data}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 10Gi}
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {namespace: sandbox, name: sandbox-data}
  hostPath: {path: "$STATE/shared", type: Directory}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: sandbox-data, namespace: sandbox}
spec:
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 10Gi}}
  storageClassName: ""
  volumeName: sandbox-data
TEXT
  local manifests=$HERE/../deploy/kubernetes/manifests/sandbox.yaml
  awk -v RS='---\n' '/\nkind: NetworkPolicy\n/ { print "---"; print }' "$manifests" | kubectl apply -f - >/dev/null ||
    die "could not make the policies of the manifests."
  # Without one, admission refuses pods.
  await 30 "the service account of the namespace" kubectl -n sandbox get serviceaccount default
}

# $PATH has kubectl of the cluster's version first.
environment() {
  local class=closed policies=switched
  [ "$(way)" = debian ] || { class='' policies=enforced; }
  cat <<TEXT
export PATH=$CACHE/bin:\$PATH
export KUBECONFIG=$(kubeconfig)
export CLUSTER_NAMESPACE=sandbox
export CLUSTER_CLOSED_CLASS=$class
export CLUSTER_POLICIES=$policies
export CLUSTER_CLAIM=sandbox-data
export CLUSTER_CLAIM_FOLDER=$STATE/shared
TEXT
}
