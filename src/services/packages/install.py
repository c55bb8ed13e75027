# Installs packages by uv, in a sandbox that runs nothing of a user. Reads what to install from standard input.
import json
import os
import re
import subprocess
import sys
from importlib import metadata

asked = json.load(sys.stdin)
folder = asked["folder"]
os.makedirs(folder)
os.makedirs("/data/.tmp")
os.environ.update(TMPDIR="/data/.tmp", UV_CACHE_DIR="/data/.cache", PYC_INVALIDATION_MODE="UNCHECKED_HASH")
# Those that the image trusts, in place of the tool's own.
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
if os.path.exists(CERTIFICATES):
    os.environ["SSL_CERT_FILE"] = CERTIFICATES
if asked["roots"]:
    # After those, for the operator's own index.
    trusted = ""
    if os.path.exists(CERTIFICATES):
        with open(CERTIFICATES) as file:
            trusted = file.read()
    with open("/data/.tmp/roots.pem", "w") as file:
        file.write(trusted + "\n" + asked["roots"])
    os.environ["SSL_CERT_FILE"] = file.name
builds = [] if asked["builds"] else ["--no-build"]


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def write(name, lines):
    with open("/data/.tmp/" + name, "w") as file:
        file.writelines(line + "\n" for line in lines)
    return file.name


def uv(*arguments):
    common = ["--no-config", "--default-index", asked["index"], "--python", sys.executable, "--no-progress", *builds]
    if subprocess.run(["uv", "pip", *arguments, *common]).returncode:
        sys.exit(1)


# What the image has stays: other versions would not fit its compiled modules.
image = {plain(had.name): had.version for had in metadata.distributions()}
constraints = write("image.txt", [f"{name}=={version}" for name, version in image.items()])
wanted = write("wanted.txt", asked["requirements"])
resolved = "/data/.tmp/resolved.txt"
uv("compile", "-q", wanted, "-c", constraints, "--generate-hashes", "--no-header", "--no-annotate", "-o", resolved)
with open(resolved) as file:
    entries = re.split(r"\n(?=\S)", file.read().strip())
pinned = {entry.split()[0]: entry for entry in entries if "==" in entry}
missing = [entry for pin, entry in pinned.items() if image.get(plain(pin.partition("==")[0])) != pin.partition("==")[2]]
if missing:
    missing = write("missing.txt", missing)
    uv("install", "--no-deps", "--require-hashes", "-r", missing, "--target", folder, "--compile-bytecode")
with open(folder + "/.sandbox.json", "w") as file:
    json.dump({"asked": asked["requirements"], "installed": sorted(pinned)}, file)
