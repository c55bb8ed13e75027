# shellcheck shell=bash
# The clients, package indexes and checkers that the tests use, in folders of their own below TOOLS. Sourced by test.sh,
# after scripts/provision.sh.
readonly MCP1=1.30.0 MCP2=2.3.0 NODE=22 INSPECTOR=2.12.0 AXE=4.14.1
readonly PYPISERVER=2.4.2 DEVPI=6.20.3 VERDACCIO=6.10.4
readonly AXIOS=1.21.1 MCP_REMOTE=0.15.1 OIDC_PROVIDER=9.13.3
readonly SCHEMATHESIS=4.32.5 ULTRA_PISTON=1.0.1 INSTAVM=0.26.1 UV=0.13.9 CONFORMANCE=0.2.0-alpha.12
readonly ASYNCSSH=2.24.1 E2B=2.11.5 LIBRECHAT_AGENTS=3.9.2 OPENAI=3.54.0
readonly OPENAPI_PYTHON=0.29.1 REDOCLY=2.77.0 SPECTRAL=6.16.3
readonly OPENAPI_TYPESCRIPT=7.13.0 OPENAPI_FETCH=0.17.0 TYPESCRIPT=5.9.3 NODE_TYPES=22.20.5
readonly JUPYTER=(jupyter_server==2.21.1 nbclient==0.11.0 papermill==2.7.0 jupyter-kernel-client==1.0.2
  aiohttp==3.14.5 websockets==17.4 pydantic==2.14.4 jupyterlab==4.6.6)
readonly OPEN_WEBUI=0.12.4
readonly MYPY=2.4.1 PYTEST=9.2.0 TRIO=0.35.0

# $1: a folder, then packages of Python, of which an environment is made there. The compiler needs the processors
# meanwhile, and uv takes a third of pip's time on them at most. pip has settings of its own, so where uv reaches no
# index it is tried.
python_environment() {
  local folder=$1 uv=$TOOLS/uv/bin/uv
  shift
  rm -rf "$folder"
  if [ -x "$uv" ] && "$uv" -q venv --no-python-downloads --python python3 --seed "$folder" &&
    "$uv" -q pip install --compile-bytecode --python "$folder/bin/python" "$@"; then
    return
  fi
  rm -rf "$folder"
  python3 -m venv "$folder" && "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@"
}

# $1: a package, $2: its version, $3: its folder
python_client() {
  local have='import sys; from importlib.metadata import version; print(version(sys.argv[1]))'
  [ "$("$3/bin/python" -c "$have" "$1" 2>/dev/null)" != "$2" ] || return 0
  python_environment "$3" "$1==$2"
}

# $1: its folder, then npm packages with their versions. With others the folder is made anew.
npm_packages() {
  local folder=$1
  shift
  [ "$(cat "$folder/made-of" 2>/dev/null)" != "$*" ] || return 0
  rm -rf "$folder"
  mkdir -p "$folder"
  printf '{"private": true, "overrides": %s}\n' "${OVERRIDES:-{\}}" >"$folder/package.json"
  npm install --loglevel error --no-audit --no-fund --prefix "$folder" "$@" && echo "$*" >"$folder/made-of"
}

node_client() {
  npm_packages "$TOOLS/npm" "node@$NODE" "@modelcontextprotocol/inspector@$INSPECTOR" \
    "@modelcontextprotocol/conformance@$CONFORMANCE" "axe-core@$AXE" "axios@$AXIOS" "mcp-remote@$MCP_REMOTE" \
    "oidc-provider@$OIDC_PROVIDER"
}

# Servers of packages. Some mirrors lack the version that verdaccio's audit names by a tag, and npm 9 refuses to
# override it, so an older audit takes its place; the tests do not use it.
package_indexes() {
  python_client pypiserver "$PYPISERVER" "$TOOLS/pypiserver" && python_client devpi-server "$DEVPI" "$TOOLS/devpi" &&
    OVERRIDES='{"verdaccio-audit": "10.2.4"}' npm_packages "$TOOLS/verdaccio" "verdaccio@$VERDACCIO"
}

# What makes clients of the API's description, and what checks it.
description_tools() {
  python_client openapi-python-client "$OPENAPI_PYTHON" "$TOOLS/openapi-python" &&
    npm_packages "$TOOLS/openapi-npm" "openapi-typescript@$OPENAPI_TYPESCRIPT" "openapi-fetch@$OPENAPI_FETCH" \
      "typescript@$TYPESCRIPT" "@types/node@$NODE_TYPES" "@redocly/cli@$REDOCLY" "@stoplight/spectral-cli@$SPECTRAL"
}

# Our own client, from its wheel, with what checks it.
own_client() {
  ./build.sh client && python_client mypy "$MYPY" "$TOOLS/client" &&
    "$TOOLS/client/bin/python" -m pip install -q --disable-pip-version-check "pytest==$PYTEST" "trio==$TRIO" \
      dist/mcp_code_sandbox-*.whl &&
    "$TOOLS/client/bin/python" -m pip install -q --disable-pip-version-check --force-reinstall --no-deps \
      dist/mcp_code_sandbox-*.whl
}

# The tools of LibreChat's agents. npm 9 takes a newer exporter than the package was made with, which cannot be loaded.
librechat_client() {
  OVERRIDES='{"@opentelemetry/exporter-trace-otlp-http": "0.223.1"}' \
    npm_packages "$TOOLS/librechat" "@librechat/agents@$LIBRECHAT_AGENTS"
}

# Of Open WebUI (106 MB) the module that is its client of Jupyter, without what the others import.
open_webui() {
  local python=$TOOLS/jupyter/bin/python wheel=$TOOLS/jupyter/wheel module=open_webui/utils/code_interpreter.py
  "$python" -m pip download -q --disable-pip-version-check --no-cache-dir --no-deps --ignore-requires-python \
    --dest "$wheel" "open-webui==$OPEN_WEBUI" &&
    "$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(*sys.argv[2:])' "$wheel"/*.whl "$module" \
      "$TOOLS/jupyter" &&
    rm -rf "$wheel"
}

# Clients of Jupyter's API.
jupyter_clients() {
  local made_of="${JUPYTER[*]} $OPEN_WEBUI"
  [ "$(cat "$TOOLS/jupyter/made-of" 2>/dev/null)" != "$made_of" ] || return 0
  python_environment "$TOOLS/jupyter" "${JUPYTER[@]}" && open_webui && echo "$made_of" >"$TOOLS/jupyter/made-of"
}

# Types and tests without a server, of the installed package.
check_client() {
  (cd clients/python && "$TOOLS/client/bin/python" -m mypy --cache-dir="$TOOLS/mypy" &&
    "$TOOLS/client/bin/python" -B -m pytest -q)
}

make_clients() {
  python_client uv "$UV" "$TOOLS/uv" &&
    python_client mcp "$MCP1" "$TOOLS/mcp1" && python_client mcp "$MCP2" "$TOOLS/mcp2" &&
    python_client schemathesis "$SCHEMATHESIS" "$TOOLS/schemathesis" &&
    python_client ultra-piston "$ULTRA_PISTON" "$TOOLS/piston" &&
    python_client instavm "$INSTAVM" "$TOOLS/instavm" &&
    python_client e2b-code-interpreter "$E2B" "$TOOLS/e2b" &&
    python_client openai "$OPENAI" "$TOOLS/openai" &&
    python_client asyncssh "$ASYNCSSH" "$TOOLS/ssh" &&
    librechat_client && package_indexes && jupyter_clients &&
    description_tools && own_client && node_client
}

# What check_clients installs otherwise; its failure is reported there.
install_models() {
  python3 tests/clients/models/install.py || say "not all clients that people use are installed yet."
}

# $1: also those that people use.
install_clients() { make_clients && { [ "$1" != true ] || install_models; }; }

# The clients that people use and the examples, with a stand-in for the models. Each of the two takes at most eight
# minutes, installation included.
check_clients() {
  python_client uv "$UV" "$TOOLS/uv" && tests/clients/models/drive.py && tests/clients/examples.py
}
