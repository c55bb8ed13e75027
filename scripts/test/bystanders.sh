# shellcheck shell=bash
# Containers of others on the engine of the tests, which no test, check or server of theirs may touch. Sourced by
# test.sh, after scripts/provision.sh.

BYSTANDERS=()

# One is what the running sandbox of another server looks like, with a deadline that is past by no clock; the other is
# of another program.
start_bystanders() {
  local base id
  base=$(./build.sh base) && id=$(tr -d - </proc/sys/kernel/random/uuid) || return
  start_bystander "$base" --name "sandbox-$id" --label sandbox.managed=true --label "sandbox.id=sandbox-$id" \
    --label "sandbox.instance=instance-$id" --label sandbox.deadline=9223372036854775807 && start_bystander "$base"
}

# $1: an image, then options of docker run. Where this script is killed, the container ends by itself.
start_bystander() {
  local id
  id=$(docker run --detach --rm --network none "${@:2}" "$1" sleep 1d) && BYSTANDERS+=("$id")
}

check_bystanders() {
  local id status=0
  for id in "${BYSTANDERS[@]}"; do
    [ "$(docker inspect -f '{{.State.Running}}' "$id" 2>/dev/null)" = true ] && continue
    say "a container that is none of the tests' was ended: $id"
    status=1
  done
  return $status
}

end_bystanders() { [ ${#BYSTANDERS[@]} -eq 0 ] || docker rm -f "${BYSTANDERS[@]}" >/dev/null 2>&1 || true; }
