# shellcheck shell=bash
# Shared by the scripts: messages, packages, proxies, a Docker engine. Sourced, not run.
# The caller sets PROGRAM, the prefix of the messages.

# Debian leaves system programs such as dockerd, runc and mkfs out of the PATH of users other than root.
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# How this machine reaches the network, where it does not do so by itself.
readonly PROXIES=(http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY)

say() { printf '%s: %s\n' "${PROGRAM:?}" "$*" >&2; }
die() { say "$*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }
may_be_root() { is_root || has sudo; }

readonly RUST_MIN=1.95

# $1: the least version, $2: another one, with more behind it.
is_at_least() { printf '%s\n' "$1" "${2%%[!0-9.]*}" | sort -CV; }

# Whether cargo is here, of a Rust that the workspace compiles with. Debian 13 has 1.85.
has_rust() {
  local version
  has cargo && version=$(cargo --version) && is_at_least "$RUST_MIN" "${version#cargo }"
}

# Prints where cargo puts what it compiles: the environment and its own settings may name another folder than target.
target_folder() {
  cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

# Whether dist/ has all that cargo makes, from this machine or another one.
has_binaries() {
  local name
  for name in mcp-sandbox-server sandbox-init sandbox-bridge sandbox-channels; do
    [ -x "dist/$name" ] || return 1
  done
}

# Prints a folder for large temporary files in which programs may be executed: Debian 13 has /tmp in memory, and some
# machines mount it so that they may not.
temporary_folder() {
  local folder file may folders=(/tmp /var/tmp)
  [ "$(stat -f -c %T /tmp)" != tmpfs ] || folders=(/var/tmp /tmp)
  for folder in ${TMPDIR:+"$TMPDIR"} "${folders[@]}"; do
    file=$(mktemp "$folder/sandbox.XXXXXX" 2>/dev/null) || continue
    chmod +x "$file"
    may=no
    [ ! -x "$file" ] || may=yes
    rm -f "$file"
    [ $may = no ] || { printf '%s\n' "$folder"; return; }
  done
  say "programs may be executed neither in ${TMPDIR:+$TMPDIR, }/tmp nor in /var/tmp; set TMPDIR to another folder."
  return 1
}

# For a trap on EXIT: ends the jobs of this script that still run. They share its process group, so they outlive it.
end_jobs() {
  local job
  for job in $(jobs -pr); do end_tree "$job"; done
}

# $1: a process, which is ended with all that it started.
end_tree() {
  local child children
  # Read first: when it has ended, its children are those of another process.
  children=$(cat "/proc/$1"/task/*/children 2>/dev/null) || true
  kill "$1" 2>/dev/null || true
  for child in $children; do end_tree "$child"; done
}

# sudo clears the environment, and apt-get and dockerd need the proxies that this user has.
as_root() {
  if is_root; then "$@"; return; fi
  local name proxies=()
  for name in "${PROXIES[@]}"; do
    [ -z "${!name:-}" ] || proxies+=("$name=${!name}")
  done
  sudo ${proxies[0]:+env "${proxies[@]}"} "$@"
}

# Installs missing Debian packages. "a|b" means the first of the two that this release has.
install_packages() {
  local wanted missing=() updated=${APT_UPDATED:-}
  for wanted in "$@"; do
    package_is_here "$wanted" || missing+=("$wanted")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  has apt-get ||
    die "this needs ${missing[*]}, installed automatically only on Debian and Ubuntu; install them and run this again."
  may_be_root || die "this needs ${missing[*]}; run 'apt-get install ${missing[*]}' as root, or run this again as root."
  if [ -z "$updated" ]; then
    update_lists || die "apt-get update failed; check this machine's package sources."
    APT_UPDATED=yes
  fi
  local names=()
  for wanted in "${missing[@]}"; do
    names+=("$(package_name "$wanted")")
  done
  say "installing ${names[*]}"
  local log
  log=$(mktemp)
  # A new machine installs its own updates meanwhile, so dpkg's lock is waited for. Packages that conflict stay:
  # Debian's docker.io would remove those of Docker's own repository, and containerd.io with what runs on it.
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 \
    install -y -qq --no-remove --no-install-recommends "${names[@]}" >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "could not install ${names[*]}; the last lines of apt-get are above."
  fi
  rm -f "$log"
}

# A new machine updates its lists itself at first, and apt-get does not wait for their lock.
update_lists() {
  local left=24 log status=0
  log=$(mktemp)
  until as_root env LC_ALL=C apt-get -o Acquire::Retries=3 update -qq >"$log" 2>&1; do
    if [ $((left--)) = 0 ] || ! grep -q 'Could not get lock' "$log"; then
      status=1
      break
    fi
    sleep 5
  done
  cat "$log" >&2
  rm -f "$log"
  return $status
}

# One installed alternative is enough: "a|b" requires either.
package_is_here() {
  local name names
  IFS='|' read -ra names <<<"$1"
  for name in "${names[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] && return 0
  done
  return 1
}

package_is_known() { apt-cache show --no-all-versions "$1" >/dev/null 2>&1; }

package_name() {
  local name names
  IFS='|' read -ra names <<<"$1"
  for name in "${names[@]}"; do
    package_is_known "$name" && { printf '%s\n' "$name"; return; }
  done
  printf '%s\n' "${names[0]}"
}

# $1: image. A registry has to answer within a minute, which the first line says; a slow line then has any time.
pull() {
  local lines pid
  say "pulling $1"
  exec {lines}< <(docker pull "$1" 2>&1)
  pid=$!
  read -r -t 60 -u "$lines" || end_tree "$pid"
  cat <&"$lines" >/dev/null
  exec {lines}<&-
  wait "$pid"
}

# The docker command does not imply an engine: it may be only a client.
engine_answers() { has docker && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# The address of the engine that the docker command uses, or nothing without that command.
engine_address() {
  local address=${DOCKER_HOST:-}
  [ -n "$address" ] || address=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null) || address=
  printf '%s\n' "$address"
}

readonly ENGINE_DEFAULT=unix:///var/run/docker.sock

# Ensures that a Docker engine answers, or says in one sentence why it does not. $@: the command to run again as a new
# member of the engine's group, if that is needed.
ensure_engine() {
  engine_answers && return
  local address
  address=$(engine_address)
  if [ "${address:-$ENGINE_DEFAULT}" != "$ENGINE_DEFAULT" ]; then
    has docker || die "there is no docker command for the engine at $address; install it and run this again."
    die "no Docker engine answers at $address; start it, or name another one by DOCKER_HOST or 'docker context use'," \
      "and run this again."
  fi
  ! engine_refuses || join_or_leave "$@"
  if ! has dockerd; then
    say "there is no Docker engine on this machine"
    install_docker
  fi
  # From Debian 13 on the command is a package of its own, which docker.io only recommends.
  has docker || install_packages "$(package_name "docker-cli|docker.io")"
  start_engine
  if ! engine_answers && ! is_root && [ -S /var/run/docker.sock ]; then
    join_docker_group "$@"
  fi
  engine_answers || die "the Docker engine was started but does not answer; see $ENGINE_LOG or 'journalctl -u docker'."
}

# The engine looks for the program that loads its profile of AppArmor once, when the package starts it. Without it,
# Docker 20.10 starts no container, and later ones start each without the profile.
install_docker() {
  ! has_apparmor || has apparmor_parser || install_packages apparmor
  install_packages docker.io
}

# Whether the kernel has AppArmor, and this machine is no container, where profiles often cannot be loaded.
has_apparmor() {
  [ -d /sys/kernel/security/apparmor ] && [ ! -e /run/systemd/container ] &&
    [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ]
}

# Whether this user may not use the engine's socket.
engine_refuses() {
  [ -z "${DOCKER_HOST:-}" ] && [ -S /var/run/docker.sock ] && [ ! -w /var/run/docker.sock ] && ! is_root
}

# Goes on as a member of the engine's group where the user joined it since the login. $@: the command to run again.
join_or_leave() {
  joined_since_login && has sg && again_as_member "$@"
  die "you may not use this Docker engine; run 'sudo usermod -aG docker $(id -un)', log in again and run this again."
}

ENGINE_LOG=/var/log/dockerd.log

start_engine() {
  may_be_root || die "the Docker engine is not running and only root can start it; start it and run this again."
  if wait_for_engine 3; then return; fi
  say "starting the Docker engine"
  if [ -d /run/systemd/system ]; then
    as_root systemctl enable --now docker >/dev/null 2>&1 ||
      die "systemd could not start the Docker engine; 'journalctl -u docker' says why."
  elif ! engine_process_runs; then
    mount_cgroups
    # Without systemd no service manager starts it, so it is started here and goes on when this script ends.
    as_root sh -c "setsid nohup dockerd >>'$ENGINE_LOG' 2>&1 </dev/null &"
  fi
  wait_for_engine 60 || {
    [ ! -r "$ENGINE_LOG" ] || tail -n 15 "$ENGINE_LOG" >&2
    die "the Docker engine did not start within 60 s; see $ENGINE_LOG or 'journalctl -u docker'."
  }
}

# Whether a Docker engine of this machine is on its way up.
engine_process_runs() {
  local pid
  pid=$(cat /var/run/docker.pid 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]
}

# The engine cannot limit anything without control groups, and a machine without systemd may have none mounted.
mount_cgroups() {
  ! mountpoint -q /sys/fs/cgroup || return 0
  # From Debian 13 on there is no such package, and one hierarchy has every controller.
  if package_is_known cgroupfs-mount; then
    install_packages cgroupfs-mount
    as_root cgroupfs-mount
  else
    as_root mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup
  fi ||
    die "could not mount the control groups that the Docker engine needs; mount /sys/fs/cgroup and run this again."
}

# $1: seconds. Succeeds on an answer, or on a socket that only root may use.
wait_for_engine() {
  local left
  for ((left = $1 * 2; left > 0; left--)); do
    engine_answers && return
    if ! is_root && as_root docker version --format '{{.Server.Version}}' >/dev/null 2>&1; then return; fi
    sleep 0.5
  done
  return 1
}

# Only after this script installed the engine for a user who can become root anyway.
join_docker_group() {
  say "adding you to the group docker, which may use the engine (and is thereby as powerful as root)"
  as_root usermod -aG docker "$(id -un)" || die "could not add you to the group docker; run this again as root."
  has sg || die "log in again, so that you are in the group docker, and run this again."
  again_as_member "$@"
}

# Whether the user is in the group docker and this process is not.
joined_since_login() {
  [[ " $(id -nG "$(id -un)") " = *" docker "* && " $(id -nG) " != *" docker "* ]]
}

# The words as any shell reads them; sg has sh, which does not know all that printf %q writes.
quoted() {
  local word
  for word in "$@"; do
    printf "'%s' " "${word//\'/$QUOTE}"
  done
}
readonly QUOTE="'\\''"

# A trap on EXIT is not run by exec, and the C library takes TMPDIR away from a program that is setuid, as sg is.
again_as_member() {
  end_jobs
  wait
  exec sg docker -c "$(quoted ${TMPDIR:+env "TMPDIR=$TMPDIR"} "$@")"
}
