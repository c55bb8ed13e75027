#!/usr/bin/env bash
# Runs the tests of project quotas (src/adapters/storage/tests/project.rs) in User-mode Linux, a kernel that is a
# process: it has ext4 and XFS with these quotas, whatever this machine's kernel has. Needs root, and installs Debian's
# packages. Where that kernel cannot be had it says so and ends with 77.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Read by provision.sh.
export PROGRAM=check-project-quotas
# shellcheck source=scripts/provision.sh
. scripts/provision.sh

# The status of a skipped check.
readonly SKIPPED=77
# What doctor recommends for the quota of the tests.
readonly DEFAULT_LIMIT='limit -p -d bhard=19m ihard=264'
# What docker-compose.yml leaves to the server, and what it takes to run a program as another user.
readonly CONTAINED=-all,+chown,+dac_override,+fowner,+setuid,+setgid,+setpcap
readonly BEGUN='the kernel has started' PASSED='all of them passed'

# Process 1 of that kernel, which sees the files of this machine and cannot change them. $1: the folder with the tests.
inside() {
  local modules
  mount -t proc proc /proc
  mount -t tmpfs -o mode=0755 tmpfs /mnt
  echo "$BEGUN"
  # Where every user may run them.
  touch /mnt/tests
  mount --bind "$1/tests" /mnt/tests
  # ext4 needs them; XFS has its own.
  modules=/usr/lib/uml/modules/$(uname -r)/kernel/fs/quota
  insmod "$modules/quota_tree.ko"
  insmod "$modules/quota_v2.ko"
  if on_ext4 && on_xfs; then echo "$PASSED"; fi
  # The power is switched off; without process 1 the kernel would end with a trace.
  perl -e 'syscall(169, 0xfee1dead, 672274793, 0x4321fedc)'
}

on_ext4() {
  mounted ext4 ubda prjquota &&
    try limited /mnt/ubda env &&
    try unlimited /mnt/ubda setpriv "--bounding-set=$CONTAINED" &&
    mounted ext4 ubda noquota &&
    try unlimited /mnt/ubda env
}

on_xfs() {
  mounted xfs ubdb prjquota &&
    try unlimited /mnt/ubdb setpriv "--bounding-set=$CONTAINED" &&
    try limited /mnt/ubdb env &&
    mounted xfs ubdc noquota &&
    try unlimited /mnt/ubdc env &&
    mounted xfs ubdc prjquota &&
    xfs_quota -x -c "$DEFAULT_LIMIT" /mnt/ubdc &&
    try limited /mnt/ubdc setpriv "--bounding-set=$CONTAINED" &&
    mkdir -m 1777 /mnt/ubdc/own &&
    try limited /mnt/ubdc/own setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set=-all
}

# $1: a file system, $2: its device, $3: an option
mounted() {
  echo "== $1 with $3"
  umount "/mnt/$2" 2>/dev/null || mkdir "/mnt/$2"
  mount -t "$1" -o "$3" "/dev/$2" "/mnt/$2"
}

# $1: which tests, $2: a folder, then the command that runs them.
try() {
  local told tests=(/mnt/tests --ignored --test-threads=1 "storage::tests::project::$1_")
  echo "$1: ${*:3}"
  told=$(TMPDIR=$2 "${@:3}" "${tests[@]}" 2>&1) || { echo "$told"; return 1; }
  # A filter that no test has passes.
  grep '^test result: ok\. [1-9]' <<<"$told" || { echo "there is no such test"; return 1; }
}

install() {
  local missing=()
  has linux.uml || missing+=(user-mode-linux)
  has insmod || missing+=(kmod)
  has mkfs.xfs || missing+=(xfsprogs)
  has mkfs.ext4 || missing+=(e2fsprogs)
  has cc || missing+=(gcc libc6-dev)
  has jq || missing+=(jq)
  install_packages "${missing[@]}"
}

# Prints the compiled tests of the library.
compiled_tests() {
  cargo test --locked --lib --no-run --message-format=json |
    jq -r 'select(.executable and .target.kind == ["lib"]) | .executable'
}

# User-mode Linux (6.1, 6.12) writes only a part of a processor's registers. Where a processor has more of them (AMX),
# the kernel refuses that. In front of the call, this library adds the others as they are.
# $1: the library
compile_registers() {
  cc -O2 -shared -fPIC -x c -o "$1" - <<'TEXT'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

typedef long call(enum __ptrace_request, ...);

long ptrace(enum __ptrace_request request, ...)
{
	static char whole[1 << 16] __attribute__((aligned(64)));
	struct iovec all = { whole, sizeof whole }, *part;
	call *next = (call *) dlsym(RTLD_NEXT, "ptrace");
	va_list list;
	va_start(list, request);
	int pid = va_arg(list, int);
	void *address = va_arg(list, void *), *data = va_arg(list, void *);
	va_end(list);
	if (request != PTRACE_SETREGSET || (long) address != NT_X86_XSTATE)
		return next(request, pid, address, data);
	part = data;
	if (next(PTRACE_GETREGSET, pid, address, &all) < 0)
		return -1;
	memcpy(whole, part->iov_base, part->iov_len < all.iov_len ? part->iov_len : all.iov_len);
	return next(PTRACE_SETREGSET, pid, address, &all);
}
TEXT
}

main() {
  local folder tests
  is_root || die "this runs as root."
  [ "$(uname -m)" = x86_64 ] || { say "User-mode Linux is for x86-64, so nothing was tried."; return $SKIPPED; }
  package_is_here user-mode-linux || has apt-get ||
    { say "user-mode-linux is a package of Debian, so nothing was tried."; return $SKIPPED; }
  install
  tests=$(compiled_tests)
  folder=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder is known now
  trap "rm -rf '$folder'" EXIT
  ln -s "$tests" "$folder/tests"
  compile_registers "$folder/registers.so"
  printf '#!/bin/bash\nexec %q inside %q\n' "$PWD/scripts/check-project-quotas.sh" "$folder" >"$folder/init"
  chmod +x "$folder/init"
  truncate -s 400M "$folder/"{ext4,xfs,xfs-default}
  mkfs.ext4 -q -O project,quota -E quotatype=prjquota "$folder/ext4"
  mkfs.xfs -q "$folder/xfs"
  mkfs.xfs -q "$folder/xfs-default"
  # Its memory is a file in TMPDIR; /dev/shm is small in a container.
  TMPDIR=$folder LD_PRELOAD=$folder/registers.so timeout 600 linux.uml mem=512M quiet con=null con0=null,fd:1 \
    root=/dev/root rootfstype=hostfs rootflags=/ ro "init=$folder/init" \
    "ubd0=$folder/ext4" "ubd1=$folder/xfs" "ubd2=$folder/xfs-default" </dev/null 2>&1 | tee "$folder/log" || true
  if ! grep -q "$BEGUN" "$folder/log"; then
    say "User-mode Linux does not start here, so nothing was tried."
    return $SKIPPED
  fi
  grep -q "$PASSED" "$folder/log"
}

if [ "${1:-}" = inside ]; then inside "$2"; else main; fi
