#!/bin/sh
# Runs the MCP Inspector's command line against a server, in every protocol era. Arguments: URL, token and the folder of
# the Node tools. Fails on any unexpected result.
set -eu
url=$1 token=$2 bin=$3

inspect() {
    "$bin/node" "$bin/mcp-inspector" --cli --server-url "$url" --transport http \
        --header "Authorization: Bearer $token" "$@"
}

# $1: name of the check, $2: expected text, $3: text to search
expect() {
    case $3 in
        *"$2"*) ;;
        *)
            printf '%s: expected %s in\n%s\n' "$1" "$2" "$3" >&2
            exit 1
            ;;
    esac
}

listed=$(inspect --method tools/list --strict)
for tool in run_code get_run cancel_run list_runners list_files read_file write_file edit_file upload_url delete_file \
  run_cell interrupt reset_session list_sessions; do
    expect "tools/list" "\"sandbox_$tool\"" "$listed"
done
for era in auto legacy modern; do
    result=$(inspect --protocol-era "$era" --method tools/call --tool-name sandbox_run_code \
        --tool-arg "conversationId=inspector-$era" language=python 'code=print("Hello!")')
    expect "tools/call ($era)" '"text": "Hello!\n' "$result"
    expect "tools/call ($era)" '"isError": false' "$result"
done
