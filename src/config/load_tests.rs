//! The sources, their order, and what is refused.

use secrecy::ExposeSecret as _;

use super::*;
use crate::{config::BindAddr, domain::Limits};

fn sources(environment: &[(&str, &str)]) -> Sources {
    let mut pairs = vec![("MCP_API_TOKEN", "0123456789abcdef"), ("FILE_SECRET", "fedcba9876543210")];
    pairs.extend(environment);
    Sources::environment_only(pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

fn refused(environment: &[(&str, &str)]) -> String {
    load(&sources(environment)).expect_err("refused").0
}

#[test]
fn defaults_are_those_of_the_contract() {
    let config = load(&sources(&[("PATH", "/bin"), ("LANG", "")])).expect("settings");
    assert_eq!(config.root, PathBuf::from("/var/sandboxes"));
    assert_eq!(config.http_addr, BindAddr { host: None, port: 8080 });
    assert_eq!(config.limits.limits(), Limits::default());
    assert_eq!(
        (config.limits.cpu_millis, config.limits.memory_bytes, config.limits.wall_ms),
        (500, 268_435_456, 30_000)
    );
    assert_eq!(config.files.url_ttl_s, 86_400);
    assert_eq!(config.engine.runner_uid, 1000);
}

#[test]
fn later_sources_win() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.toml");
    let toml = "SANDBOX_ROOT = \"/srv/a\"\nSANDBOX_LIMITS__CPU_MILLIS = 900\n\
                [limits]\nwall_ms = 1000\nmemory_bytes = 33554432\n";
    std::fs::write(&file, toml).expect("written");
    let env_file = folder.path().join("env");
    std::fs::write(&env_file, "SANDBOX_LIMITS__WALL_MS=2000\nUNRELATED=1\nSANDBOX_FILES__LISTED_MAX=7\n")
        .expect("written");
    let mut all = sources(&[("SANDBOX_LIMITS__WALL_MS", "3000"), ("SANDBOX_ADMISSION__SLOTS", "")]);
    all.file = Some(file);
    all.env_file = Some(env_file);
    all.overrides = vec![("SANDBOX_LIMITS__MEMORY_BYTES".to_owned(), "67108864".to_owned())];
    let config = load(&all).expect("settings");
    assert_eq!(config.root, PathBuf::from("/srv/a"));
    assert_eq!((config.limits.wall_ms, config.limits.memory_bytes, config.limits.cpu_millis), (3000, 67_108_864, 900));
    assert_eq!(config.files.listed_max, 7);
}

#[test]
fn the_database_is_in_the_root_whatever_characters_that_has() {
    let config = load(&sources(&[("SANDBOX_ROOT", "/srv/50% of a?b")])).expect("settings");
    let url = config.database_url();
    assert_eq!(url.expose_secret(), "sqlite:///srv/50%25%20of%20a%3Fb/.state/sandbox.db");
}

#[test]
fn shared_folders_have_names_that_the_operator_chooses() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.toml");
    std::fs::write(&file, "[mounts]\nteam-files = \"/srv/team:rw\"\nempty = \"\"\n").expect("written");
    let mut all = sources(&[("SANDBOX_MOUNTS__DOCS", "/srv/docs"), ("SANDBOX_MOUNTS__NONE", "")]);
    all.file = Some(file);
    let config = load(&all).expect("settings");
    let shown: Vec<_> = config.shared_folders().expect("folders").iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["/mnt/docs (read-only)", "/mnt/team-files"]);
    let printed = config.print();
    assert!(printed.contains("\nSANDBOX_MOUNTS__DOCS=/srv/docs\n") && !printed.contains('<'), "{printed}");
    for (name, value) in [
        ("SANDBOX_MOUNTS__A__B.C", "/srv/docs"),
        ("SANDBOX_MOUNTS__", "/srv/docs"),
        ("SANDBOX_MOUNTS__DOCS", "docs"),
        ("SANDBOX_MOUNTS__DOCS", "/"),
        ("SANDBOX_MOUNTS__DOCS", "/var/sandboxes/c"),
    ] {
        let why = refused(&[(name, value)]);
        assert!(why.contains("SANDBOX_MOUNTS__"), "{name}={value}: {why}");
    }
    let environment = [("SANDBOX_MOUNTS__DOCS", "/srv/docs"), ("SANDBOX_ROOT", "/srv"), ("PATH", "/bin")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let folders = |root: &str| super::super::shared_folders(&environment, Path::new(root));
    assert_eq!(folders("/var/sandboxes").expect("folders").len(), 1);
    assert!(folders("/srv").expect_err("the root").0.contains("SANDBOX_MOUNTS__DOCS"));
}

#[test]
fn folders_that_programs_can_replace_by_links_are_refused() {
    let writable = ("SANDBOX_MOUNTS__WORK", "/srv/work:rw");
    for (name, path) in [
        ("SANDBOX_MOUNTS__DOCS", "/srv/work/docs"),
        ("SANDBOX_SKILLS__ROOT", "/srv/work/skills"),
        ("SANDBOX_SKILLS__ROOT", "/srv/work"),
    ] {
        let why = refused(&[writable, (name, path)]);
        assert!(why.starts_with(name) && why.contains(":rw"), "{why}");
        assert!(load(&sources(&[("SANDBOX_MOUNTS__WORK", "/srv/work"), (name, path)])).is_ok(), "{name}");
    }
}

#[test]
fn skills_have_a_root_under_either_name() {
    for name in ["SANDBOX_SKILLS_ROOT", "SANDBOX_SKILLS__ROOT"] {
        assert_eq!(load(&sources(&[(name, "/srv/skills")])).expect("settings").skills.root, "/srv/skills", "{name}");
    }
}

#[test]
fn secrets_of_programs_are_checked_and_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, value) = (folder.path().join("a.toml"), folder.path().join("value"));
    let with = |table: &str, environment: &[(&str, &str)]| {
        let network = "[network.api]\nhosts = [\"api.example.com\"]\n";
        std::fs::write(&file, format!("{network}[secrets.git]\n{table}")).expect("written");
        let config = load(&Sources { file: Some(file.clone()), ..sources(environment) })?;
        config.secrets().map(|secrets| (secrets.len(), format!("{}{config:?}", config.print())))
    };
    let hosts = "hosts = [\"api.example.com\"]\n";
    let from_file = format!("{hosts}value_file = \"{}\"\n", value.display());
    let missing = with(&from_file, &[]).expect_err("no file").0;
    assert!(missing.starts_with("SANDBOX_SECRETS__GIT: `value_file`"), "{missing}");
    std::fs::write(&value, "hidden-in-the-file\n").expect("written");
    assert_eq!(with(&from_file, &[]).expect("a secret").0, 1);
    let variable = [("SANDBOX_SECRETS__GIT", "hidden-in-a-variable")];
    let (count, shown) = with(hosts, &variable).expect("a secret");
    assert!(count == 1 && shown.contains("SANDBOX_SECRETS__GIT=(set)") && !shown.contains("hidden"), "{shown}");
    let inside = format!("{hosts}value = \"hidden-in-the-table\"");
    assert!(!with(&inside, &[]).expect("a secret").1.contains("hidden"));
    for (table, environment, part) in [
        (hosts, &[][..], "it has no value"),
        (from_file.as_str(), &variable, "keep one of them"),
        ("hosts = [\"other.example\"]", &variable, "no policy that it is for allows other.example:443"),
        ("", &variable, "`hosts` is empty"),
        ("hosts = [\"api.example.com\"]\nheader = \"a b\"", &variable, "`header`"),
        ("hosts = [\"api.example.com\"]\npolicies = [\"web\"]", &variable, "no policy `web`"),
        ("hosts = [\"api.example.com\"]\nhidden = 1", &variable, "unknown field"),
        (hosts, &[("SANDBOX_SECRETS__GIT", "hid den-value")], "the value must be"),
        (hosts, &[("SANDBOX_SECRETS__HUB", "hidden-value")], "SANDBOX_SECRETS__HUB: `hosts` is empty"),
    ] {
        let why = with(table, environment).expect_err(part).0;
        assert!(why.contains("SANDBOX_SECRETS__") && why.contains(part) && !why.contains("hid den"), "{part}: {why}");
        assert!(!why.contains("hidden-"), "{why}");
    }
}

#[test]
fn wrong_field_of_a_network_policy_is_named() {
    for (hosts, why) in [("*.com", "covers the hosts of many owners"), ("a b", "is not a host")] {
        let message = refused(&[("SANDBOX_NETWORK__WEB", hosts)]);
        assert!(message.starts_with("SANDBOX_NETWORK__WEB: `hosts`: ") && message.contains(why), "{message}");
    }
}

#[test]
fn unknown_and_wrong_settings_are_named() {
    for (name, value) in [
        ("SANDBOX_LIMITS__WALLMS", "1"),
        ("SANDBOX_LIMIT__WALL_MS", "1"),
        ("SANDBOX_ROOTS", "/x"),
        ("SANDBOX_", "1"),
        ("SANDBOX_LIMITS__WALL_MS", "soon"),
        ("SANDBOX_LIMITS__WALL_MS", "-1"),
        ("SANDBOX_LIMITS__WALL_MS", "1.5"),
        ("SANDBOX_LIMITS__WALL_MS", "0"),
        ("SANDBOX_ENGINE__RUNNER_UID", "0"),
        ("SANDBOX_ENGINE__CGROUP_PARENT", "sandboxes"),
        ("SANDBOX_ENGINE__CGROUP_PARENT", ".slice"),
        ("SANDBOX_ENGINE__CGROUP_PARENT", "a/b.slice"),
        ("SANDBOX_ENGINE__CGROUP_PARENT", "/"),
        ("SANDBOX_ENGINE__CGROUP_PARENT", "/sandboxes/"),
        ("SANDBOX_ENGINE__CGROUP_PARENT", "/sandboxes/../system"),
        ("SANDBOX_FILES__URL_TTL_S", "604801"),
        ("SANDBOX_LOG__FORMAT", "xml"),
        ("SANDBOX_LOG__LEVEL", "warning"),
        ("SANDBOX_LIMITS__WALL_MS", "30 parsecs"),
        ("SANDBOX_LIMITS__WALL_MS", "30MiB"),
        ("SANDBOX_LIMITS__MEMORY_BYTES", "30s"),
        ("SANDBOX_RUNS__KEPT_AGE_S", "1500ms"),
        ("SANDBOX_LIMITS__MEMORY_BYTES", "99999999999GiB"),
        ("SANDBOX_SERVER__CORS_ORIGINS", "https://a.example,*"),
        ("SANDBOX_SERVER__CORS_ORIGINS", "https://a.example/"),
        ("SANDBOX_RUNS__ON_DISCONNECT", "leave"),
        ("SANDBOX_RUNS__WAIT_S_DEFAULT", "3601"),
        ("SANDBOX_ROOT", "relative"),
        ("SANDBOX_ROOT", "/"),
        ("PUBLIC_BASE_URL", "sandbox.test"),
        ("PUBLIC_BASE_URL", "https://u@sandbox.test"),
        ("PUBLIC_BASE_URL", "https://sandbox.test?x"),
        ("MCP_HTTP_ADDR", "8080"),
        ("SANDBOX_TRACES__OTLP_ENDPOINT", "https://127.0.0.1:4318"),
        ("SANDBOX_TRACES__OTLP_ENDPOINT", "127.0.0.1:4318"),
        ("SANDBOX_TRACES__OTLP_HEADERS", "api-key"),
        ("SANDBOX_FILES__BASE_URL", "files.test"),
        ("SANDBOX_FILES__BASE_URL", "https://localhost:9000"),
        ("SANDBOX_FILES__BASE_URL", "https://files.test/below"),
        ("MCP_API_TOKEN", "passwordpassword"),
        ("FILE_SECRET", "fedcba9876543210,token-token-token"),
        ("MCP_API_TOKEN", "short"),
        ("FILE_SECRET", "fedcba9876543210,short"),
        ("FILE_SECRET", "0123456789abcdef"),
    ] {
        let error = refused(&[(name, value)]);
        assert!(error.contains(name), "{name}={value}: {error}");
    }
    for (text, part) in [
        ("[limits]\nwallms = 1", "limits.wallms"),
        ("[limit]\nwall_ms = 1", "limit.wall_ms"),
        ("root = \"/x\"", "root"),
        ("PATH = \"/x\"", "PATH"),
        ("[limits]\nwall_ms = \"x\"", "SANDBOX_LIMITS__WALL_MS"),
        ("= 1", "TOML"),
        ("SANDBOX_ROOT = [1]", "SANDBOX_ROOT"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.toml");
        std::fs::write(&file, text).expect("written");
        let error = load(&Sources { file: Some(file), ..sources(&[]) }).expect_err(text).0;
        assert!(error.contains(part), "{text}: {error}");
    }
    let flag = vec![("PATH".to_owned(), "/x".to_owned())];
    assert!(load(&Sources { overrides: flag, ..sources(&[]) }).is_err());
    let absent = Sources { file: Some("/nonexistent/x.toml".into()), ..sources(&[]) };
    assert!(load(&absent).expect_err("absent").0.contains("/nonexistent/x.toml"));
}

#[test]
fn parent_of_control_groups_is_a_slice_or_a_path_and_of_docker() {
    for good in ["", "sandboxes.slice", "machines-sandboxes.slice", "/sandboxes", "/machines/sandboxes"] {
        load(&sources(&[("SANDBOX_ENGINE__CGROUP_PARENT", good)])).expect(good);
    }
    let parent = ("SANDBOX_ENGINE__CGROUP_PARENT", "/sandboxes");
    let why = refused(&[("SANDBOX_ENGINE__KIND", "kubernetes"), ("SANDBOX_ENGINE__CLAIM", "c"), parent]);
    assert!(why.contains("SANDBOX_ENGINE__CGROUP_PARENT does not work with Kubernetes"), "{why}");
}

#[test]
fn numbers_take_units_of_time_and_size() {
    let config = load(&sources(&[
        ("SANDBOX_LIMITS__WALL_MS", "45s"),
        ("SANDBOX_LIMITS__MEMORY_BYTES", "512MiB"),
        ("SANDBOX_LIMITS__OUTPUT_KEPT_BYTES", "64 KiB"),
        ("SANDBOX_QUOTA__BYTES_MAX", "2GiB"),
        ("SANDBOX_RUNS__KEPT_AGE_S", "2h"),
        ("SANDBOX_RUNS__WAIT_S_DEFAULT", "30000ms"),
        ("SANDBOX_SERVER__SHUTDOWN_GRACE_MS", "1m"),
    ]))
    .expect("settings");
    assert_eq!((config.limits.wall_ms, config.limits.memory_bytes), (45_000, 512 << 20));
    assert_eq!((config.limits.output_kept_bytes, config.quota.bytes_max), (64 << 10, 2 << 30));
    assert_eq!((config.runs.kept_age_s, config.runs.wait_s_default), (7200, 30));
    assert_eq!(config.server.shutdown_grace_ms, 60_000);
}

#[test]
fn print_shows_every_setting_and_no_secret() {
    let headers = ("SANDBOX_TRACES__OTLP_HEADERS", "api-key=a-secret-of-the-collector");
    let config = load(&sources(&[("SANDBOX_LIMITS__WALL_MS", "1234"), headers])).expect("settings");
    let text = config.print() + format!("{config:?}").as_str();
    assert!(text.contains("SANDBOX_LIMITS__WALL_MS=1234") && text.contains("MCP_API_TOKEN=(set)"));
    assert!(text.contains("SANDBOX_TRACES__OTLP_HEADERS=(set)") && !text.contains("a-secret-of"), "{text}");
    assert!(!text.contains("0123456789abcdef") && !text.contains("fedcba9876543210"), "{text}");
    for setting in settings().filter(|s| !matches!(s.key, "TUNNEL_TOKEN" | super::super::section::ANY_KEY)) {
        assert!(text.contains(&format!("{}=", setting.name())), "{}", setting.name());
    }
}

#[test]
fn a_token_may_look_like_a_number_and_secrets_rotate() {
    let config = load(&sources(&[
        ("MCP_API_TOKEN", "12345678901234567890"),
        ("FILE_SECRET", "fedcba9876543210, 0987654321fedcba"),
    ]))
    .expect("settings");
    assert_eq!(config.file_secrets().count(), 2);
}

#[test]
fn an_empty_value_means_not_set_for_every_name() {
    let defaults = load(&sources(&[])).expect("settings").print();
    let names: Vec<_> = settings().map(|setting| setting.name()).collect();
    let required = ["MCP_API_TOKEN", "FILE_SECRET"];
    let empty: Vec<_> =
        names.iter().filter(|name| !required.contains(&name.as_str())).map(|name| (&**name, "")).collect();
    assert_eq!(load(&sources(&empty)).expect("settings").print(), defaults);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.toml");
    std::fs::write(&file, "PUBLIC_BASE_URL = \"\"\n[limits]\nwall_ms = \"\"\n").expect("written");
    assert_eq!(load(&Sources { file: Some(file), ..sources(&[]) }).expect("settings").print(), defaults);
    for name in required {
        let mut all = sources(&[]);
        all.environment.retain(|(set, _)| set != name);
        all.environment.push((name.to_owned(), String::new()));
        let error = load(&all).expect_err(name).0;
        assert!(error.starts_with(name) && error.contains("not set"), "{error}");
    }
}

#[test]
fn an_error_does_not_repeat_the_value() {
    for (name, value) in
        [("SANDBOX_LIMITS__WALL_MS", "a-secret-by-mistake"), ("PUBLIC_BASE_URL", "a-secret-by-mistake")]
    {
        let error = refused(&[(name, value)]);
        assert!(!error.contains(value), "{error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.toml");
    let no_map = "SANDBOX_TOOLS__GIT has a wrong value: invalid type: string, expected a map.";
    for (text, part) in [
        ("SANDBOX_ROOT = \"/x\"\nMCP_API_TOKEN = a-secret-by-mistake\n", "is not valid TOML: line 2, column "),
        ("MCP_API_TOKEN = \"a-secret-by-mistake\r\n", "is not valid TOML: line "),
        ("[tools.git]\nurl = \"https://x.test/\"\nheaders = \"a-secret-by-mistake, expected\"\n", no_map),
    ] {
        std::fs::write(&file, text).expect("written");
        let error = load(&Sources { file: Some(file.clone()), ..sources(&[]) }).expect_err(text).0;
        assert!(error.contains(part) && !error.contains("a-secret") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_peer_url_may_be_an_ipv6_address_with_brackets_or_without() {
    let at = |url: &'static str| {
        load(&sources(&[("SANDBOX_SERVER__PEER_URL", url), ("DATABASE_URL", "postgres://u@db.test/sandbox")]))
    };
    for (url, expected) in [
        ("http://fd00:10:244::5:8080", "http://[fd00:10:244::5]:8080"),
        ("http://[fd00:10:244::5]:8080", "http://[fd00:10:244::5]:8080"),
        ("http://10.0.0.7:8080", "http://10.0.0.7:8080"),
        ("http://sandbox-0.test:8080", "http://sandbox-0.test:8080"),
    ] {
        assert_eq!(at(url).expect("settings").peer_url(), expected);
    }
    for wrong in ["http://fd00::8080", "http://10.0.0.7:8080/below", "https://10.0.0.7:8080"] {
        assert!(at(wrong).expect_err(wrong).0.contains("SANDBOX_SERVER__PEER_URL"), "{wrong}");
    }
}

#[test]
fn a_refresh_token_lives_as_long_as_an_access_token_or_longer() {
    let names = ["SANDBOX_SIGN_IN__ACCESS_S", "SANDBOX_SIGN_IN__REFRESH_S"];
    let with = |access, refresh| load(&sources(&[(names[0], access), (names[1], refresh)]));
    assert!(with("86400", "86400").is_ok());
    for (access, refresh) in [("86400", "3600"), ("3601", "3600")] {
        let error = with(access, refresh).expect_err("the connection would end first").0;
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }
}
