#!/usr/bin/env bash
# Makes the manifests of deploy/kubernetes from its chart, and checks them. scripts/chart/render.go renders, which has
# Helm's template engine and functions from Debian's packages.
#   scripts/chart.sh render    writes the manifests
#   scripts/chart.sh check     fails when they are not current; tries values that must be refused
#   scripts/chart.sh server    has the API server of KUBECONFIG check them; changes nothing there
# Installs these packages where it can, and ends with 77 where they are missing.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PROGRAM=chart
# shellcheck source=scripts/provision.sh
. scripts/provision.sh

readonly CHART=deploy/kubernetes/chart MANIFESTS=deploy/kubernetes/manifests NAMESPACE=sandbox SKIPPED=77
WORK=$(mktemp -d)
readonly WORK
trap 'rm -rf "$WORK"' EXIT

# What is missing of Debian's packages; Go may come from elsewhere.
missing() {
  local name
  has go || echo golang-go
  for name in golang-github-masterminds-sprig-dev golang-k8s-sigs-yaml-dev golang-github-xeipuuv-gojsonschema-dev; do
    package_is_here "$name" || echo "$name"
  done
}

prepare() {
  local missing
  mapfile -t missing < <(missing)
  if has apt-get && may_be_root; then
    # In a subshell: this is the only step that needs them, and is skipped where they cannot be installed.
    (install_packages "${missing[@]}") || true
    mapfile -t missing < <(missing)
  fi
  [ ${#missing[@]} -eq 0 ] || {
    say "the chart was not rendered, which needs Debian's packages ${missing[*]}."
    exit $SKIPPED
  }
  GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=$WORK/cache go build -o "$WORK/render" scripts/chart/render.go
}

# $@: -f VALUES and -s TEMPLATE, any number of times, and -k VERSION, that of Kubernetes; default 1.30.
render() { "$WORK/render" "$CHART" -n $NAMESPACE "$@"; }

# What the chart's files are, so that a test without a renderer sees that they have changed. $1: a folder
manifests() {
  mkdir -p "$1"
  local digest
  digest=$(find "$CHART" -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -d' ' -f1)
  printf 'autoscaling: {enabled: true}\nmonitoring: {enabled: true}\n' >"$WORK/monitoring.yaml"
  {
    printf '# Made from ../chart by scripts/chart.sh render; chart %s\n' "$digest"
    cat <<TEXT
apiVersion: v1
kind: Namespace
metadata:
  name: $NAMESPACE
  labels: {pod-security.kubernetes.io/enforce: restricted}
TEXT
    render
  } >"$1/sandbox.yaml"
  {
    printf '# Made from ../chart by scripts/chart.sh render; chart %s\n' "$digest"
    printf '# Instead of those of the same names in sandbox.yaml.\n'
    render -f "$WORK/monitoring.yaml" -s availability.yaml -s service.yaml -s server.yaml
  } >"$1/monitoring.yaml"
}

# $1: what must be refused, $2: values.
refuses() {
  printf '%s\n' "$2" >"$WORK/refused.yaml"
  ! render -f "$WORK/refused.yaml" >/dev/null 2>&1 || die "values were accepted that must not be: $1."
}

check() {
  local text
  manifests "$WORK/made"
  diff -ru "$MANIFESTS" "$WORK/made" || die "the manifests are not those of the chart: run scripts/chart.sh render."
  refuses "a name that is none" 'replica: 3'
  refuses "a secret among the settings" 'settings: {MCP_API_TOKEN: abc}'
  refuses "a secret of programs among the settings" 'settings: {SANDBOX_SECRETS__KEY: abc}'
  refuses "a secret of a tool server among the settings" 'settings: {SANDBOX_TOOLS__KEY: abc}'
  refuses "a setting that the chart makes" 'settings: {SANDBOX_ENGINE__NAMESPACE: other}'
  refuses "a setting that the chart makes of another value" 'settings: {SANDBOX_SERVER__SHUTDOWN_GRACE_MS: 1}'
  refuses "a runner without a language" \
    'runners: {more: [{name: perl, image: runner-perl, labels: {sandbox.runner: "true"}}]}'
  refuses "a runner that is not ours" 'runners: {names: [perl]}'
  printf '%s\n' 'sandboxes: {namespace: other, runtimeClass: gvisor, userNamespaces: true,' \
    '  nodeSelector: {pool: sandbox}}' \
    'settings: {SANDBOX_ADMISSION__SLOTS: 40, SANDBOX_ENGINE__CLUSTER_MEMORY_BYTES: 274877906944,' \
    '  SANDBOX_ENGINE__RUNNER_UID: 2000}' 'configuration: {configMap: networks}' \
    'runners: {more: [{name: perl, image: runner-perl, labels:' \
    '  {sandbox.runner: "true", sandbox.language: perl}}]}' >"$WORK/other.yaml"
  render -f "$WORK/other.yaml" >"$WORK/other"
  for text in 'namespace: other' 'runtimeClassName: gvisor' 'pool: sandbox' 'hostUsers: false' 'value: "40"' \
    'name: runner-perl' 'value: "274877906944"' 'runAsUser: 2000' 'configMap: {name: networks}'; do
    grep -q "$text" "$WORK/other" || die "a value of an operator does not arrive in the manifests: $text."
  done
  printf '%s\n' 'replicas: 1' 'monitoring: {enabled: true}' >"$WORK/one.yaml"
  render -f "$WORK/one.yaml" >"$WORK/one"
  grep -q 'strategy: {type: Recreate}' "$WORK/one" || die "one server is not replaced before its successor starts."
  for text in PodDisruptionBudget podAntiAffinity PEER_URL maxSurge preStop; do
    ! grep -q "$text" "$WORK/one" || die "one server alone has what several have: $text."
  done
  render -k v1.20.2 -f "$WORK/monitoring.yaml" >"$WORK/old"
  for text in policy/v1beta1 autoscaling/v2beta2; do
    grep -q "apiVersion: $text$" "$WORK/old" || die "Kubernetes 1.20 does not get the API that it has: $text."
  done
  ! grep -q preStop "$WORK/old" || die "Kubernetes 1.20 gets an action that it does not have."
  # As providers name their versions, which are prereleases to `semverCompare`.
  render -k v1.30.0-eks-036c24b >"$WORK/provider"
  grep -q preStop "$WORK/provider" || die "a provider's Kubernetes 1.30 counts as older."
}

# The API server need not be of the version that the manifests are for.
server() {
  local version
  version=$(kubectl version -o yaml | sed -n '/^serverVersion:/,$s/^  gitVersion: //p')
  kubectl get namespace $NAMESPACE >/dev/null
  # A claim cannot be applied over another one of the same name.
  printf '%s\n' 'autoscaling: {enabled: true}' 'files: {claim: sandbox-chart}' >"$WORK/values.yaml"
  render -f "$WORK/values.yaml" -k "$version" | kubectl apply --dry-run=server --validate=true -f -
}

main() {
  prepare
  case ${1:-} in
    render) manifests "$MANIFESTS" ;;
    check) check ;;
    server) server ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
}

main "$@"
