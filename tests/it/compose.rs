//! Both compose files, started for real from a folder of their own; only the tunnel's own connection is left out.
//!
//! A project is taken down by [`Project::down`], which asserts that nothing of it is left on the engine.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    docs,
    support::{engines::docker_host, free_port},
};

const TOKEN: &str = "0123456789abcdef-of-the-compose-tests";
const PREPARE: &str = "this test needs Docker Compose and the images: run ./test.sh, which prepares both";
/// What a developer's shell may hold and a compose file reads.
const READ_BY_COMPOSE: [&str; 15] = [
    "SANDBOX_SKILLS__ROOT",
    "SANDBOX_ENGINE__CGROUP_PARENT",
    "SANDBOX_ENGINE__RUNNER_IMAGES",
    "SANDBOX_ENGINE__RUNNER_UID",
    "SANDBOX_ENGINE__RUNNER_UIDS",
    "SANDBOX_ENGINE__RUNTIME",
    "MCP_PUBLISH",
    "PUBLIC_BASE_URL",
    "SANDBOX_ROOT",
    "ENV_FILE",
    "SERVER_IMAGE",
    "DOCKER_SOCKET",
    "TUNNEL_TOKEN",
    "CLOUDFLARED_IMAGE",
    "COMPOSE_FILE",
];

struct Project {
    name: String,
    file: &'static str,
    folder: TempDir,
    down: bool,
}

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}; {PREPARE}"))
}

/// What a command that must succeed prints.
fn text(command: &mut Command) -> String {
    let output = run(command);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // `doctor` prints its findings also where it fails.
    assert!(output.status.success(), "{command:?}: {stdout}{stderr}; {PREPARE}");
    String::from_utf8(output.stdout).expect("text")
}

fn docker(arguments: &[&str]) -> String {
    text(Command::new("docker").args(arguments)).trim().to_owned()
}

impl Project {
    /// Copies the compose file, and the one that it may extend, into a folder, writes its settings, and starts it.
    fn up(file: &'static str, settings: impl FnOnce(&str) -> String) -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-compose-").tempdir().expect("a folder");
        let name = format!("sandbox-it-{}", uuid::Uuid::new_v4().simple());
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        for file in ["docker-compose.yml", file] {
            fs::copy(source.join(file), folder.path().join(file)).expect("the compose file");
        }
        let root = folder.path().join("root");
        fs::create_dir(&root).expect("a root");
        let skills = folder.path().join("skills");
        fs::create_dir_all(skills.join("public/greet")).expect("a folder");
        fs::write(skills.join("public/greet/SKILL.md"), "---\nname: greet\ndescription: d\n---\n").expect("a skill");
        let mut text = format!(
            "MCP_API_TOKEN={TOKEN}\nFILE_SECRET=fedcba9876543210-of-the-compose-tests\nSANDBOX_ROOT={}\n\
             SANDBOX_SKILLS__ROOT={}\n{}",
            root.display(),
            skills.display(),
            settings(&name)
        );
        if let Some(socket) = docker_host().strip_prefix("unix://") {
            text.extend(["DOCKER_SOCKET=", socket, "\n"]);
        }
        fs::write(folder.path().join(".env"), text).expect("settings");
        let project = Self { name, file, folder, down: false };
        project.compose(&["up", "-d", "--no-build"]);
        project
    }

    fn compose(&self, arguments: &[&str]) -> String {
        let plugin = run(Command::new("docker").args(["compose", "version"])).status.success();
        let mut command = Command::new(if plugin { "docker" } else { "docker-compose" });
        for name in READ_BY_COMPOSE {
            command.env_remove(name);
        }
        command.args(plugin.then_some("compose")).args(["-p", &self.name, "-f", self.file]);
        text(command.args(arguments).current_dir(self.folder.path()))
    }

    /// The container of a service.
    fn container(&self, service: &str) -> String {
        self.compose(&["ps", "-q", service]).trim().to_owned()
    }

    fn wait_until_ready(&self) {
        let container = self.container("sandbox");
        let deadline = Instant::now() + Duration::from_mins(1);
        // The same command as the health check's.
        while !run(Command::new("docker").args(["exec", &container, "/mcp-sandbox-server", "health"])).status.success()
        {
            let log = run(Command::new("docker").args(["logs", &container]));
            assert!(Instant::now() < deadline, "not ready: {}", String::from_utf8_lossy(&log.stderr));
            sleep(Duration::from_millis(200));
        }
    }

    fn on_engine(&self, what: &[&str]) -> String {
        let filter = format!("label=com.docker.compose.project={}", self.name);
        docker(&[what, &["-q", "--filter", &filter]].concat())
    }

    /// Takes it down and asserts that no container, network, volume or sandbox of it is left.
    fn down(mut self) {
        self.down = true;
        let instance = fs::read_to_string(self.folder.path().join("root/.instance")).expect("the server's name");
        self.compose(&["down", "-v"]);
        assert_eq!(self.on_engine(&["ps", "-a"]), "", "a container is left");
        assert_eq!(self.on_engine(&["network", "ls"]), "", "a network is left");
        assert_eq!(self.on_engine(&["volume", "ls"]), "", "a volume is left");
        let sandboxes = docker(&["ps", "-aq", "--filter", &format!("label=sandbox.instance={}", instance.trim())]);
        assert_eq!(sandboxes, "", "a sandbox is left");
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        if !self.down {
            self.compose(&["down", "-v"]);
        }
        // The server is root in its container, and who runs the tests may not be.
        let mount = format!("{}:/folder", self.folder.path().display());
        run(Command::new("docker").args(["run", "--rm", "--user", "0", "--network", "none", "-v", &mount]).args([
            "--entrypoint",
            "rm",
            "runner-bash",
            "-rf",
            "/folder/root",
            "/folder/skills",
        ]));
    }
}

fn call(language: &str, code: &str) -> String {
    json!({"jsonrpc": "2.0", "id": "1", "method": "tools/call", "params": {"name": "sandbox.run_code",
           "arguments": {"conversationId": "compose", "language": language, "code": code}}})
    .to_string()
}

fn result(answer: &str) -> Value {
    let answer: Value = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

fn link(result: &Value) -> String {
    let link = result["content"].as_array().and_then(|all| all.iter().find(|one| one["type"] == "resource_link"));
    link.and_then(|link| link["uri"].as_str()).unwrap_or_else(|| panic!("no link: {result}")).to_owned()
}

/// README's call of a tool, to be run as a user would in the folder of `.env`.
fn readmes_call(port: u16) -> String {
    let mut commands = docs::shell_commands(include_str!("../../README.md"));
    let script = commands.find(|script| script.contains("tools/call")).expect("README has a call");
    assert!(script.contains("localhost:8080"), "{script}");
    script.replace("localhost:8080", &format!("localhost:{port}"))
}

#[test]
fn compose_file_serves_on_one_port() {
    let port = free_port();
    let base = format!("http://localhost:{port}");
    let project = Project::up("docker-compose.yml", |_| {
        format!("MCP_PUBLISH=127.0.0.1:{port}\nPUBLIC_BASE_URL={base}\nTUNNEL_TOKEN=of-another-service\n")
    });
    project.wait_until_ready();

    let folder = project.folder.path();
    let curl = readmes_call(port);
    let hello = result(&text(Command::new("bash").args(["-c", &curl]).current_dir(folder).env("NO_PROXY", "*")));
    assert!(hello["content"][0]["text"].as_str().is_some_and(|text| text.starts_with("Hello!\n")), "{hello}");

    let bearer = format!("Authorization: Bearer {TOKEN}");
    let run_program = |language: &str, code: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "*", "-H", &bearer, "-H", "Content-Type: application/json"]);
        result(&text(curl.args(["-d", &call(language, code), &format!("{base}/mcp?structured=on")])))
    };
    let written = run_program("bash", "printf 'a,b\\n1,2\\n' >out.csv");
    let url = link(&written);
    assert!(url.starts_with(&format!("{base}/files/compose/out.csv?")), "{url}");
    assert_eq!(text(Command::new("curl").args(["-fsS", "--noproxy", "*", &url])), "a,b\n1,2\n");
    let skill = run_program("bash", "grep name: /skills/public/greet/SKILL.md");
    assert_eq!(skill["structuredContent"]["stdout"], "name: greet\n", "{skill}");
    // Told apart only with the host's control groups and the kernel's log in view.
    let forking = run_program("bash", "for i in {1..500}; do sleep 20 & done; exit 1");
    assert_eq!(forking["structuredContent"]["outcome"]["ended"], "process_limit", "{forking}");
    let greedy = run_program("python", "x = [bytearray(1 << 20) for _ in range(1000)]");
    assert_eq!(greedy["structuredContent"]["outcome"]["ended"], "out_of_memory", "{greedy}");

    only_the_proxy_has_the_engines_socket(&project);

    let container = project.container("sandbox");
    let environment = docker(&["inspect", "-f", "{{join .Config.Env \"\\n\"}}", &container]);
    assert!(!environment.contains("of-another-service"), "the tunnel's token is none of the server's business");
    doctor_has_no_false_finding(&container);
    project.down();
}

/// Beside the server, as `docker compose exec` starts it.
fn doctor_has_no_false_finding(server: &str) {
    let findings = docker(&["exec", server, "/mcp-sandbox-server", "doctor", "--json"]);
    let findings: Value = serde_json::from_str(&findings).expect("JSON");
    let levels = |check: &str| {
        let all = findings.as_array().expect("a list").iter().filter(|finding| finding["check"] == check);
        all.map(|finding| finding["level"].as_str().expect("a level")).collect::<Vec<_>>()
    };
    for check in ["settings", "files", "address", "links", "descriptors", "standby"] {
        let levels = levels(check);
        assert!(!levels.is_empty() && levels.iter().all(|level| *level == "ok"), "{check}: {findings:#}");
    }
    // The machine of the test may have an old engine, or a handler of core dumps.
    for check in ["engine", "isolation"] {
        assert!(levels(check).contains(&"ok"), "{check}: {findings:#}");
    }
}

/// What a server that was taken over could reach.
fn only_the_proxy_has_the_engines_socket(project: &Project) {
    let (server, engine) = (project.container("sandbox"), project.container("engine"));
    let mounts = |container: &str| docker(&["inspect", "-f", "{{range .Mounts}}{{.Source}} {{end}}", container]);
    assert!(!mounts(&server).contains("docker.sock") && mounts(&engine).contains("docker.sock"));
    let written = "{{range .Mounts}}{{if .RW}}{{.Destination}} {{end}}{{end}}";
    let written = docker(&["inspect", "-f", written, &engine]);
    let mut written: Vec<_> = written.split_whitespace().collect();
    written.sort_unstable();
    assert_eq!(written, ["/run/sandbox-engine", "/var/run/docker.sock"]);
    assert!(mounts(&engine).contains("/skills"), "it checks the folders that it mounts");
    assert_eq!(docker(&["inspect", "-f", "{{.HostConfig.NetworkMode}}", &engine]), "none");
    let environment = docker(&["inspect", "-f", "{{join .Config.Env \"\\n\"}}", &engine]);
    assert!(!environment.contains("TOKEN") && !environment.contains("SECRET"), "{environment}");
    let log = run(Command::new("docker").args(["logs", &engine]));
    let log = String::from_utf8_lossy(&log.stderr);
    // A sandbox may be gone by the time that the server asks about it.
    let is_gone = |line: &str| line.contains("the engine has no such image or container");
    let refused: Vec<_> = log.lines().filter(|line| line.contains("not passed on") && !is_gone(line)).collect();
    // The server asks once whether it runs in a container of this engine.
    assert!(refused.len() <= 1, "{refused:#?}");
}

#[test]
fn cloudflare_compose_file_opens_no_port() {
    let stand_in = StandIn::build();
    let project = Project::up("docker-compose-cloudflare.yml", |_| {
        format!("PUBLIC_BASE_URL=https://sandbox.test\nTUNNEL_TOKEN=of-no-tunnel\nCLOUDFLARED_IMAGE={}\n", stand_in.0)
    });
    project.wait_until_ready();

    only_the_proxy_has_the_engines_socket(&project);
    let (server, tunnel) = (project.container("sandbox"), project.container("cloudflared"));
    for container in [&server, &tunnel] {
        assert_eq!(docker(&["port", container]), "", "a port is published");
    }
    let networks = docker(&["inspect", "-f", "{{range $k, $v := .NetworkSettings.Networks}}{{$k}} {{end}}", &server]);
    assert_eq!(networks.trim(), format!("{}_inner", project.name));
    assert_eq!(docker(&["network", "inspect", "-f", "{{.Internal}}", networks.trim()]), "true");

    // What the tunnel's end does with a request from outside: the public name as `Host`, the service as address.
    let ask = |path: &str, body: &str| {
        docker(&["exec", &tunnel, "python3", "-c", ASK, &format!("http://sandbox:8080{path}"), TOKEN, body])
    };
    let written =
        result(&ask("/mcp?structured=on", &call("python", "print('Hello!'); open('out.csv', 'w').write('1,2\\n')")));
    assert_eq!(written["structuredContent"]["stdout"], "Hello!\n", "{written}");
    let url = link(&written);
    let path = url.strip_prefix("https://sandbox.test").unwrap_or_else(|| panic!("{url}"));
    assert_eq!(ask(path, ""), "1,2");
    project.down();
}

/// Sends one request as the tunnel's end would, and prints the body of the answer.
const ASK: &str = "
import sys, urllib.request
_, url, token, body = sys.argv
headers = {'Host': 'sandbox.test'}
if body:
    headers |= {'Content-Type': 'application/json', 'Authorization': 'Bearer ' + token}
request = urllib.request.Request(url, body.encode() or None, headers)
print(urllib.request.urlopen(request, timeout=60).read().decode())
";

/// An image in the place of cloudflared: it takes the same arguments, stays, and can send requests.
struct StandIn(String);

impl StandIn {
    fn build() -> Self {
        let image = format!("sandbox-it-tunnel:{}", uuid::Uuid::new_v4().simple());
        let folder = tempfile::tempdir().expect("a folder");
        let text = "FROM runner-python\nLABEL sandbox.runner=false\nENTRYPOINT [\"sh\", \"-c\", \"exec sleep 600\"]\n";
        fs::write(folder.path().join("Dockerfile"), text).expect("a Dockerfile");
        docker(&["build", "-q", "-t", &image, &folder.path().display().to_string()]);
        Self(image)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        run(Command::new("docker").args(["image", "rm", "-f", &self.0]));
    }
}
