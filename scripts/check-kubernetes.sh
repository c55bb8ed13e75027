#!/usr/bin/env bash
# Runs on a real cluster what needs one: the chart's objects against the API server, the server's rights, the engine
# contract and every other test of the name, and then the tests of programs, sessions, standbys and files on servers
# whose sandboxes are pods. Where KUBECONFIG is set that cluster is used as it is; otherwise one is made and ended by
# scripts/kubernetes-cluster.sh, or left where it was there before.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'check-kubernetes: %s\n' "$*" >&2; }
# What the tests start.
IMAGES=("$(./build.sh base)" runner-{bash,javascript,python,typescript}:latest)
readonly IMAGES

# Of a cluster that was not made here no part is stopped.
filter='not test(/^engine_kubernetes::(outages::|policies::pods_of_the_own_cluster_)/)'
if [ -z "${KUBECONFIG:-}" ]; then
  filter='all()'
  [ -e "$(scripts/kubernetes-cluster.sh kubeconfig)" ] || trap 'scripts/kubernetes-cluster.sh down' EXIT
  scripts/kubernetes-cluster.sh up
  scripts/kubernetes-cluster.sh load "${IMAGES[@]}"
  variables=$(scripts/kubernetes-cluster.sh env)
  eval "$variables"
fi
# Whether its nodes enforce policies: only where the tests switch that is there something to see of both.
case ${CLUSTER_POLICIES:-} in
  switched) ;;
  enforced) filter+=' and not test(/^engine_kubernetes::isolation::the_isolation_check_refuses_a_cluster_/)' ;;
  *) filter+=' and not test(/^engine_kubernetes::policies::/)' ;;
esac

status=0
scripts/chart.sh server || status=$?
# It ends with 77 where nothing can render the chart.
if [ $status = 77 ] && [ "${CI:-}" != true ]; then
  say "skipped: the API server did not check the chart's objects."
elif [ $status != 0 ]; then
  exit $status
fi

readonly MANIFESTS=deploy/kubernetes/manifests/sandbox.yaml NAMESPACE=${CLUSTER_NAMESPACE:-sandbox}

# Objects of the plain manifests, in the namespace of the tests. $1: their kinds, as a pattern
objects() {
  awk -v RS='---\n' -v kinds="\nkind: ($1)\n" '$0 ~ kinds { print "---"; print }' $MANIFESTS |
    sed "s/^\( *namespace: \)sandbox$/\1$NAMESPACE/"
}

# What the Role of the plain manifests allows is what the server needs, and no more.
rights() {
  local account=system:serviceaccount:$NAMESPACE:mcp-sandbox-server role made=no
  role=$(objects 'Role|RoleBinding')
  # Of a server that is installed there the rights are checked as they are, and left.
  if ! kubectl get -f - <<<"$role" >/dev/null 2>&1; then
    kubectl create -f - <<<"$role" >/dev/null
    made=yes
  fi
  local listed may other
  # A context of KUBECONFIG need not name the namespace.
  listed=$(kubectl auth can-i --list --as "$account" -n "$NAMESPACE" --no-headers)
  may=$(awk '$1 ~ /^(pods|podtemplates|pods\/attach)$/ { sub(/^[^[]*\[\] *\[\] */, $1 " "); print }' <<<"$listed" |
    LC_ALL=C sort)
  other=$(awk '$1 !~ /^(pods|podtemplates|pods\/attach|\[.*|selfsubject.*)$/ && NF { print $1 }' <<<"$listed")
  [ $made = no ] || kubectl delete -f - <<<"$role" >/dev/null
  local wanted=$'pods [create get list watch delete]\npods/attach [get create]\npodtemplates [get list watch]'
  if [ "$may" != "$wanted" ] || [ -n "$other" ]; then
    say "the server's rights are not what docs/kubernetes.md says: $may $other"
    return 1
  fi
}
rights

PATH=$PATH:$PWD/target/test-tools/cargo/bin
# Pods of all tests share two nodes. $1: a profile of .config/nextest.toml
run_tests() {
  cargo nextest run --locked --workspace --profile "$1" --no-fail-fast --test-threads 2 -E "$filter"
}

# With the runners of the plain manifests, which the other tests do not expect. Those of a server that is installed
# there are left.
run_tests_of_servers() {
  local runners made=no status=0
  runners=$(objects PodTemplate)
  if ! kubectl get -f - <<<"$runners" >/dev/null 2>&1; then
    kubectl create -f - <<<"$runners" >/dev/null
    made=yes
  fi
  TEST_ENGINE=kubernetes run_tests kubernetes-servers || status=$?
  [ $made = no ] || kubectl delete -f - <<<"$runners" >/dev/null
  return $status
}

status=0
run_tests kubernetes || status=$?
run_tests_of_servers || status=$?
exit $status
