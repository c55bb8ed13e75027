//! How the scripts build images and pull them.

use std::{fs, path::Path};

use super::{bash, prints};
use crate::{quickstart::functions_of, tidy};

/// Prints the builder that is used where another one is the default, also of an old docker command.
const BUILDER: &str = r#"
. ./functions.sh
export BUILDX_BUILDER=in-a-container
docker() { [ "$1" != context ] || echo desktop; }
need_docker
bash -c 'echo "$BUILDX_BUILDER"'
docker() { [ "$1" != context ]; }
need_docker
bash -c 'echo "$BUILDX_BUILDER"'
"#;

#[test]
fn images_are_built_by_the_engine_that_starts_them() {
    let folder = functions_of("build.sh");
    prints(&folder, BUILDER, "desktop\n\n");
}

/// The base image is made as root, for the engine of the user's context.
const CONTEXT: &str = r#"
mv functions.sh scripts && . scripts/functions.sh
mkdir bin
printf '#!/bin/sh
printf "%%s\n" "$@"
' >bin/sudo
chmod +x bin/sudo
unset "${PROXIES[@]}" MIRROR SSL_CERT_FILE DOCKER_HOST DOCKER_CONFIG DOCKER_CERT_PATH DOCKER_TLS_VERIFY
is_root() { return 1; }
PATH=$PWD/bin:$PATH HOME=/home/ann DOCKER_CONTEXT=rootless main
"#;

#[test]
fn the_base_image_goes_to_the_engine_of_the_user_who_builds() {
    let output = bash(&functions_of("scripts/make-base.sh"), CONTEXT);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let wanted = "env\nDOCKER_CONFIG=/home/ann/.docker\nDOCKER_CONTEXT=rootless\n";
    assert!(output.status.success() && out.starts_with(wanted), "{out}\n{err}");
}

/// A registry that answers, one that refuses, and none, where the time that `read` has is over at once.
const PULL: &str = r"
. ./functions.sh
docker() { echo Pulling from a slow registry; echo done >pulled; }
pull one && cat pulled
docker() { echo no such host >&2; return 1; }
pull two || echo refused
docker() { exec sleep infinity; }
read() { return 142; }
pull three || echo none
";

#[test]
fn a_pull_ends_where_no_registry_answers() {
    prints(&functions_of("quickstart.sh"), PULL, "done\nrefused\nnone\n");
}

/// Two former images, then none.
const FORMER: &str = r"
. ./functions.sh
docker() { [[ $* = 'images -f dangling=true -f label=sandbox.runner=true '* ]] && printf '3GB\n1.2GB\n'; }
say_former 2>&1
docker() { :; }
say_former 2>&1
";

#[test]
fn former_runner_images_are_named_with_their_sizes() {
    let wanted = "build: former runner images stay (3GB 1.2GB, partly shared); remove them: docker image prune\n";
    prints(&functions_of("build.sh"), FORMER, wanted);
}

/// A user whose settings of cargo name a folder for all that it compiles.
const ELSEWHERE: &str = r#"
. ./functions.sh
has_rust() { return 0; }
rustc() { echo 'host: here'; }
cargo() {
  case $1 in
    metadata) printf '{"packages":[],"target_directory":"%s","version":1}\n' "$PWD/else where" ;;
    build) mkdir -p "else where/here/release" && echo server >"else where/here/release/mcp-sandbox-server" ;;
  esac
}
build_binary
cat dist/mcp-sandbox-server
"#;

#[test]
fn the_server_is_taken_from_where_cargo_puts_it() {
    prints(&functions_of("build.sh"), ELSEWHERE, "server\n");
}

/// Where no Rust is installed, a container compiles the server from what `.dockerignore` lets through.
#[test]
fn files_that_are_compiled_into_the_server_reach_the_build_of_its_image() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().expect("the repository");
    let ignored = fs::read_to_string(root.join(".dockerignore")).expect("a list");
    let sent: Vec<_> = ignored.lines().filter_map(|line| line.strip_prefix('!')).map(|line| root.join(line)).collect();
    let mut count = 0;
    for source in tidy::sources() {
        let folder = root.join("src").join(&source.name);
        let macros = ["include_str!(\"", "include_bytes!(\"", "include_dir!(\"$CARGO_MANIFEST_DIR/"];
        for (included, text) in
            macros.iter().flat_map(|name| source.text.split(name).skip(1).map(move |rest| (name, rest)))
        {
            let name = text.split('"').next().expect("a name");
            let path = if included.ends_with('/') { root.join(name) } else { folder.with_file_name(name) };
            let path = path.canonicalize().unwrap_or_else(|error| panic!("{}: {name}: {error}", source.name));
            assert!(sent.iter().any(|one| path.starts_with(one)), "{} is left out by .dockerignore", path.display());
            count += 1;
        }
    }
    assert!(count > 10, "{count} files are included");
}
