#!/usr/bin/env bash
# Runs a command of this repository on a machine that has nothing yet: a fresh Debian root file system with a copy of
# the repository, a process tree, a home and a Docker engine of its own. What an earlier command installed, built or
# cached on this machine is not visible there, so a step that no script provides fails as it does for a new user.
#
# Shared with this machine are its kernel, its network, its certificate authorities and the Rust toolchain, which README
# asks for.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PROGRAM=clean-room
# shellcheck source=scripts/provision.sh
. scripts/provision.sh
# shellcheck source=scripts/authorities.sh
. scripts/authorities.sh

# What ./test.sh writes at most, all clients included, and some more.
readonly DISK_GB=20
readonly ROOMS=/var/tmp
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# How this machine reaches the network is no part of the room.
readonly PASSED_ON=("${PROXIES[@]}" SSL_CERT_FILE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE PIP_CERT NODE_EXTRA_CA_CERTS
  GIT_SSL_CAINFO CI)

usage() {
  cat <<TEXT
Usage: scripts/clean-room.sh [--suite NAME] [--user] [--systemd] [--nextest] [--keep] [--] COMMAND [ARGUMENT...]
  --suite NAME   the Debian release of the room: bookworm (default) or trixie
  --user         the command runs as a user with sudo instead of as root
  --systemd      the room is booted by systemd, which runs the command and starts the engine
  --nextest      lends the room this machine's cargo-nextest, which test.sh compiles in two minutes otherwise
  --keep         the room's folder is left, and named
Needs root or sudo, $DISK_GB GB of free disk, and mmdebstrap, which it installs.
Example: scripts/clean-room.sh ./test.sh
TEXT
}

# Rooms of commands that were killed before they could remove theirs; a room in use is locked.
remove_left_rooms() {
  local left
  for left in "$ROOMS"/clean-room.*; do
    if [ -d "$left" ] && [ -e "$left.lock" ] && flock --nonblock "$left.lock" true; then
      say "removing $left, which an earlier command left"
      rm -rf --one-file-system "$left" "$left.lock"
    fi
  done
}

check_disk() {
  local free
  free=$(df --output=avail --block-size=1G "$ROOMS" | tail -n 1)
  ((free >= DISK_GB)) || die "$ROOMS has $free GB of free disk, and the room may need $DISK_GB GB: free some."
}

# $1: the room, $2: the release, $3: more packages, each after a comma
make_root() {
  local mirror
  mirror=$(host_mirror main)
  say "making a root file system of Debian $2"
  # A room is not used after a crash of this machine, so dpkg does not wait for the disk.
  mmdebstrap --quiet --mode=root --variant=minbase --keyring="$KEYRING" --include="ca-certificates,git,sudo$3" \
    --dpkgopt=force-unsafe-io "$2" "$1" ${mirror:+"$mirror"} || die "mmdebstrap failed; is a Debian mirror reachable?"
  add_host_authorities "$1" || die "could not add the host's certificate authorities."
  cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
  printf 'tester ALL=(ALL) NOPASSWD: ALL\n' >"$1/etc/sudoers.d/tester"
  chroot "$1" useradd --create-home --shell /bin/bash tester
}

# $1: the room. What git tracks here, as it is in the working tree. Where another user owns the checkout, git takes its
# word for that from a file only: the process that reads the origin of a clone does not get the options of `git -c`.
copy_repository() {
  local -x GIT_CONFIG_GLOBAL=$1/tmp/gitconfig
  printf '[safe]\n\tdirectory = *\n' >"$GIT_CONFIG_GLOBAL"
  git clone --quiet --no-hardlinks . "$1/home/tester/sandbox"
  git ls-files -z | tar --null --files-from=- --ignore-failed-read -c 2>/dev/null | tar -x -C "$1/home/tester/sandbox"
  rm "$GIT_CONFIG_GLOBAL"
}

# Runs in namespaces of its own, as root. $1: the room, $2: the user, $3: the toolchain, $4: cargo-nextest or nothing,
# $5: whether systemd is started, then the command.
enter() {
  local room=$1 user=$2 toolchain=$3 nextest=$4 systemd=$5 words=() name
  shift 5
  mount --bind "$room" "$room"
  cd "$room"
  mount -t proc proc proc
  mount --rbind /sys sys
  mount --rbind /dev dev
  mount -t tmpfs -o mode=0755 tmpfs run
  # As Debian has it from there on.
  ! grep -q '=trixie$' etc/os-release || mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs tmp
  mkdir -p opt/rust before
  mount --bind -o ro "$toolchain" opt/rust
  if [ -n "$nextest" ]; then
    touch usr/local/bin/cargo-nextest
    mount --bind -o ro "$nextest" usr/local/bin/cargo-nextest
  fi
  pivot_root . before
  umount -l before
  for name in "${PASSED_ON[@]}"; do
    [ -z "${!name:-}" ] || words+=("$name=${!name}")
  done
  local home=/root path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  # As Debian sets it for a user.
  [ "$user" = root ] || { home=/home/$user path=/usr/local/bin:/usr/bin:/bin; }
  chown -R "$user:" /home/tester
  # shellcheck disable=SC2016 # the inner shell fills these in
  set -- sh -c 'cd /home/tester/sandbox && exec "$@"' sh "$@"
  set -- env -i HOME="$home" USER="$user" LANG=C.UTF-8 TERM=dumb PATH="/opt/rust/bin:$path" "${words[@]}" \
    setpriv --reuid "$user" --regid "$user" --init-groups "$@"
  [ "$systemd" = no ] || boot "$@"
  local status=0
  "$@" </dev/null || status=$?
  # The engine that the command started takes its containers' control groups away when it ends in order.
  if [ -r /run/docker.pid ]; then
    kill "$(cat /run/docker.pid)" 2>/dev/null || true
    local left
    for ((left = 60; left > 0; left--)); do
      [ -e /run/docker.pid ] || break
      sleep 0.5
    done
  fi
  return "$status"
}

# Makes control groups for a room with systemd, and prints their folders. One with processes hands no controller of
# cgroups v2 on, so that one is below the root, the others are below this process's own.
make_groups() {
  local names path folder name
  while IFS=: read -r _ names path; do
    folder=/sys/fs/cgroup/${names#name=}
    if [ -z "$names" ]; then
      path=
      [ ! -d /sys/fs/cgroup/unified ] || folder=/sys/fs/cgroup/unified
    fi
    folder=$folder$path/$1
    mkdir "$folder"
    for name in cpuset.cpus cpuset.mems; do
      [ ! -e "$folder/../$name" ] || cat "$folder/../$name" >"$folder/$name"
    done
    printf '%s\n' "$folder"
  done </proc/self/cgroup
}

# Becomes systemd, which runs a command as a unit, writes what that prints to /output, and ends with its status and all
# that was started. It may not change what the room shares with this machine.
boot() {
  local names name
  printf '%q ' exec "$@" >/command
  printf '</dev/null >/output 2>&1\n' >>/command
  cd /etc/systemd/system
  printf '%s\n' '[Unit]' Wants=basic.target SuccessAction=exit FailureAction=exit \
    '[Service]' 'ExecStart=/bin/bash /command' >room.service
  for name in sysctl modules-load tmpfiles-setup-dev tmpfiles-setup-dev-early random-seed; do
    ln -s /dev/null "systemd-$name.service"
  done
  cd /
  mount --bind /proc/sys /proc/sys
  mount --bind /proc/sys/net /proc/sys/net
  mount -o remount,bind,ro /proc/sys
  # Control groups from the room's own on.
  umount -l /sys/fs/cgroup
  if grep -qv '^0::' /proc/self/cgroup; then
    mount -t tmpfs -o mode=0755 tmpfs /sys/fs/cgroup
    while IFS=: read -r _ names _; do
      name=${names#name=}
      mkdir "/sys/fs/cgroup/${name:-unified}"
      if [ -z "$names" ]; then mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified; continue; fi
      [ "$name" = "$names" ] || names=none,$names
      mount -t cgroup -o "$names" cgroup "/sys/fs/cgroup/$name"
    done </proc/self/cgroup
  else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
  fi
  exec env -i container=room PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=room.service \
    --show-status=no </dev/null
}

main() {
  local suite=bookworm user=root keep=no systemd=no nextest='' arguments=("$@")
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage; return ;;
      --suite) suite=${2:?--suite takes a name}; shift ;;
      --user) user=tester ;;
      --systemd) systemd=yes ;;
      --nextest) nextest=$(command -v cargo-nextest) || die "there is no cargo-nextest to lend." ;;
      --keep) keep=yes ;;
      --) shift; break ;;
      -*) usage >&2; exit 2 ;;
      *) break ;;
    esac
    shift
  done
  [ $# -gt 0 ] || { usage >&2; exit 2; }
  # sudo has a PATH of its own; the toolchain is found by this user's.
  is_root || {
    has sudo && exec sudo --preserve-env env "PATH=$PATH" "HOME=$HOME" scripts/clean-room.sh "${arguments[@]}"
    die "needs root."
  }
  has_rust || die "needs Rust 1.95 or newer, which the room borrows; install it and run this again."
  install_packages mmdebstrap debian-archive-keyring git
  remove_left_rooms
  check_disk

  # The room's user may read its files.
  umask 022
  # Global, not local: the trap outlives this function.
  room=$(mktemp -d "$ROOMS/clean-room.XXXXXX")
  chmod 0755 "$room"
  if [ $keep = yes ]; then
    say "the room is $room"
  else
    # Held as long as this process or the room's lives.
    exec {lock}>"$room.lock"
    flock "$lock"
    trap 'rm -rf --one-file-system "$room" "$room.lock"' EXIT
  fi
  make_root "$room" "$suite" "$([ $systemd = no ] || echo ,dbus,systemd,systemd-sysv)"
  copy_repository "$room"
  say "running $* as $user"
  local status=0 more=() groups=() reader output
  if [ $systemd = yes ]; then
    mapfile -t groups < <(make_groups "${room##*/}")
    more=(--cgroup)
    mkfifo "$room/output"
    cat "$room/output" &
    reader=$!
    exec {output}>"$room/output"
  fi
  export -f enter boot
  (
    for folder in "${groups[@]}"; do echo "$BASHPID" >"$folder/cgroup.procs"; done
    # shellcheck disable=SC2016 # the inner shell fills these in
    PASSED_ON_NAMES=${PASSED_ON[*]} unshare --mount --pid --fork --kill-child --ipc --uts "${more[@]}" \
      --propagation private bash -c \
      'set -euo pipefail; read -ra PASSED_ON <<<"$PASSED_ON_NAMES"; enter "$@"' enter \
      "$room" "$user" "$(rustc --print sysroot)" "$nextest" $systemd "$@"
  ) || status=$?
  if [ $systemd = yes ]; then
    exec {output}>&-
    wait "$reader"
    find "${groups[@]}" -depth -type d -exec rmdir {} + || true
  fi
  say "$* ended with status $status"
  return "$status"
}

main "$@"
