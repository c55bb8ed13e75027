# shellcheck shell=bash
# What test.sh installs on the machine itself. Sourced, not run, after scripts/provision.sh; TOOLS is the folder of what
# is installed for this checkout alone.
readonly NEXTEST=0.9.143

# Makes what the tests inherit the same for every user: files that other users' programs can read, messages in English,
# descriptors for thousands of connections, no proxy before this machine's own addresses, a checkout that git reads also
# where another user owns it, and temporary files on a disk that can be executed.
prepare_environment() {
  umask 022
  unset LANGUAGE
  export LC_ALL=C.UTF-8
  ulimit -Sn 65536 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"
  local direct=${no_proxy:-${NO_PROXY:-}} count=${GIT_CONFIG_COUNT:-0} folder
  case $(compgen -e) in
    *_proxy* | *_PROXY*)
      export no_proxy=${direct:+$direct,}localhost,127.0.0.1,::1
      export NO_PROXY=$no_proxy
      ;;
  esac
  export "GIT_CONFIG_KEY_$count=safe.directory" "GIT_CONFIG_VALUE_$count=$(pwd -P)" GIT_CONFIG_COUNT=$((count + 1))
  folder=$(temporary_folder) || exit
  [ "$folder" = "${TMPDIR:-/tmp}" ] || export TMPDIR=$folder
}

# Several steps and tests list the files of the repository.
check_clone() {
  git ls-files --error-unmatch test.sh >/dev/null 2>&1 ||
    die "the tests need git and a clone; in an unpacked archive run 'git init && git add .' and this again."
}

# The tests and the server know no contexts of the docker command. $@: as of ensure_engine.
use_engine() {
  ensure_engine "$@"
  local address
  address=$(engine_address)
  case $address in
    "$ENGINE_DEFAULT") ;;
    unix://*) export DOCKER_HOST=$address ;;
  esac
}

# What cargo needs.
install_compiler() {
  local missing=()
  has curl || missing+=(curl ca-certificates)
  has cc || missing+=(gcc libc6-dev)
  install_packages "${missing[@]}"
}

install_machine() {
  local missing=()
  has jq || missing+=(jq)
  has mmdebstrap || missing+=(mmdebstrap)
  has openssl || missing+=(openssl)
  has chromium-headless-shell || missing+=(chromium-headless-shell)
  has chromedriver || missing+=(chromium-driver)
  has shellcheck || missing+=(shellcheck)
  has mkfs.ext4 || missing+=(e2fsprogs)
  has losetup || missing+=(mount)
  has git || missing+=(git)
  has ssh || missing+=(openssh-client)
  # The tests kill an engine of their own, wherever the engine is that the others use.
  { has dockerd && has containerd; } || install_docker
  has podman || missing+=(podman catatonit crun)
  has npm || missing+=(nodejs npm)
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  docker compose version >/dev/null 2>&1 || has docker-compose || missing+=("docker-compose-v2|docker-compose")
  install_packages "${missing[@]}"
  install_postgres
}

# Tests start clusters of their own, so the package makes none.
install_postgres() {
  local conf=/etc/postgresql-common/createcluster.conf
  ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || return 0
  install_packages postgresql-common
  # A step's failures do not end it, and without this line the next package starts a server.
  if ! as_root sed -i 's/^[# ]*create_main_cluster *=.*/create_main_cluster = false/' "$conf" ||
    ! grep -qx 'create_main_cluster = false' "$conf"; then
    say "$conf could not be changed, so PostgreSQL was not installed; install it and run this again."
    return 1
  fi
  install_packages postgresql
}

# Whether cargo-nextest is here, of a version that knows the settings of .config/nextest.toml.
has_nextest() {
  local version
  has cargo-nextest && version=$(cargo-nextest --version) && is_at_least "$NEXTEST" "${version#cargo-nextest }"
}

# The runner of the tests: one process and one time limit for each test. Its updater, with HTTP and TLS, is left out.
install_nextest() {
  has_nextest ||
    install_crate --debug "cargo-nextest@$NEXTEST" --no-default-features --features default-no-update
}

# $@: a crate and options of cargo install. It is compiled below TOOLS, because the folder of temporary files may be
# small, and in memory; and not as compile_once has it.
install_crate() {
  local status=0
  env -u RUSTFLAGS -u RUSTC_WORKSPACE_WRAPPER -u CARGO_BUILD_TARGET CARGO_PROFILE_DEV_DEBUG=false \
    cargo install --quiet --locked --root "$TOOLS/cargo" --target-dir "$TOOLS/cargo/build" "$@" || status=$?
  rm -rf "$TOOLS/cargo/build"
  return "$status"
}
