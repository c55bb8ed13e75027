//! Names, and the length of the list.

use std::time::Duration;

use super::*;
use crate::{
    domain::{AllowedVariables, Limits, shared_folder::SharedFolder},
    ports::{engine::ImageId, runner::RunnerImage},
};

/// The list of the groups that are listed by default, with everything switched on, in bytes.
const LIST_BYTES_MAX: usize = 16 << 10;
/// What the settings and the labels of one sentence may add, in bytes beyond their own bound.
const SENTENCE_BYTES_MAX: usize = 200;

#[test]
fn either_name_finds_its_tool() {
    for tool in ToolName::ALL.iter().copied() {
        assert_eq!(ToolName::find(tool.dotted()), Some(tool));
        assert_eq!(ToolName::find(tool.underscored()), Some(tool));
        assert_eq!(tool.dotted().replace('.', "_"), tool.underscored());
    }
    for name in ["", "run_code", "sandbox.run-code", "SANDBOX.run_code", "sandbox.run_code "] {
        assert_eq!(ToolName::find(name), None, "{name}");
    }
}

#[test]
fn schemas_of_arguments_are_portable() {
    for tool in ToolName::ALL {
        let schema = (tool.facts().arguments)();
        assert!(schema["properties"].is_object() && schema["additionalProperties"] == false, "{schema:?}");
        let text = Value::Object(schema).to_string();
        for word in ["$ref", "$defs", "anyOf", "oneOf", "null", "\"type\":["] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}

fn options() -> McpOptions {
    McpOptions {
        image_bytes_max: 1 << 20,
        images_max: 4,
        read_bytes_max: 192 << 10,
        write_bytes_max: 8 << 20,
        limits: Limits::default(),
        wait_default: Duration::from_secs(45),
        folders: Vec::new(),
        variables: AllowedVariables::parse("API_KEY").expect("names"),
        view: View::default(),
    }
}

/// A runner that offers sessions.
fn runner(language: &str, description: &str) -> Runner {
    let labels = [
        ("sandbox.runner", "true"),
        ("sandbox.language", language),
        ("sandbox.description", description),
        ("sandbox.protocol", "2"),
        ("sandbox.kernel", "a"),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let image = RunnerImage { id: ImageId("a".to_owned()), reference: None, created_unix_s: 0, labels, flaw: None };
    Runner::from_image(&image).expect("a runner")
}

fn list(options: &McpOptions, runners: &[Runner], offered: &Offered<'_>) -> String {
    let listed = tools(options, runners, offered, View::default(), |_| true);
    serde_json::to_string(&listed).expect("JSON")
}

/// Everything is switched on.
fn offered<'a>(owner: &'a Principal, hosts: &'a [String], secrets: &'a [(String, Vec<String>)]) -> Offered<'a> {
    Offered { owner, hosts, secrets, installs: true, browses: true, skills: true, tools: true }
}

#[test]
fn the_whole_list_and_each_sentence_in_it_are_bounded() {
    let owner = Principal::default();
    let (plain, few) = (options(), [runner("python", "")]);
    let all = list(&plain, &few, &offered(&owner, &[], &[]));
    for name in ["run_cell", "install_packages", "browse", "search_tools", "get_tool_source", "upload_url"] {
        assert!(all.contains(&format!("\"sandbox_{name}\"")), "{name}");
    }
    assert!(all.contains("\"get_skill_file\"") && !all.contains("execute_python_code"));
    println!("everything that is listed by default: {} bytes", all.len());
    assert!(all.len() <= LIST_BYTES_MAX, "{} bytes", all.len());

    let hosts: Vec<_> = (0..100).map(|number| format!("host-{number}.example.org")).collect();
    let secrets: Vec<_> =
        (0..100).map(|number| (format!("VARIABLE_{number}"), vec!["example.org".to_owned()])).collect();
    let folder = |number| SharedFolder::parse(&format!("folder-{number}"), "/srv/docs").expect("a folder");
    let folders = McpOptions { folders: (0..100).map(folder).collect(), ..options() };
    let names: Vec<_> = (0..100).map(|number| format!("VARIABLE_{number}")).collect();
    let variables = AllowedVariables::parse(&names.join(",")).expect("names");
    let variables = McpOptions { variables, ..options() };
    let many: Vec<_> = (0..30).map(|number| runner(&format!("language-{number}"), &"x ".repeat(300))).collect();
    for (what, longer, bytes_max) in [
        ("hosts", list(&plain, &few, &offered(&owner, &hosts, &[])), 500),
        ("secrets", list(&plain, &few, &offered(&owner, &[], &secrets)), 500),
        ("folders", list(&folders, &few, &offered(&owner, &[], &[])), 500),
        ("variables", list(&variables, &few, &offered(&owner, &[], &[])), 500),
        ("languages", list(&plain, &many, &offered(&owner, &[], &[])), 2500),
    ] {
        let more = longer.len() - all.len();
        println!("{what} add {more} bytes");
        assert!((bytes_max / 2..=bytes_max + SENTENCE_BYTES_MAX).contains(&more), "{what} add {more} bytes");
    }
}

#[test]
fn default_of_a_limit_is_in_the_range_of_its_tool() {
    let owner = Principal::default();
    let listed = tools(&options(), &[runner("python", "")], &offered(&owner, &[], &[]), View::default(), |_| true);
    let listed = serde_json::to_value(&listed).expect("JSON");
    let default = |name: &str| {
        let tool = listed.as_array().expect("a list").iter().find(|tool| tool["name"] == name).expect(name);
        assert!(tool["inputSchema"]["properties"]["limit"].is_object(), "{tool}");
        tool["inputSchema"]["properties"]["limit"]["default"].as_u64()
    };
    assert_eq!(default("sandbox_read_file"), Some(48 << 10));
    assert_eq!(default("sandbox_search_tools"), None, "its description says 10");
}

#[test]
fn texts_name_only_tools_that_are_listed() {
    let (owner, options, runners) = (Principal::default(), options(), [runner("python", "")]);
    let hosts = ["example.org".to_owned()];
    let listed = |groups: &str| {
        let view = View::default().with_groups(groups).expect("groups");
        tools(&options, &runners, &offered(&owner, &hosts, &[]), view, |_| true)
    };
    for groups in Group::ALL.map(Group::word) {
        let list = listed(groups);
        let text = serde_json::to_string(&list).expect("JSON");
        for tool in ToolName::ALL.iter().map(|tool| tool.underscored()).filter(|name| name.starts_with("sandbox_")) {
            let is_listed = list.iter().any(|one| one.name == tool);
            assert!(is_listed || !text.contains(tool), "the list of {groups} names {tool}: {text}");
        }
    }
    let about = |groups: &str, tool: &str| {
        let found = listed(groups).into_iter().find(|one| one.name == tool).expect(tool);
        found.description.expect("a description").into_owned()
    };
    for part in ["- Limits: 30 s", "example.org", "- python", "pip install", "mcptools"] {
        assert!(about("session", "sandbox_run_cell").contains(part), "{part}");
        assert!(about("run", "sandbox_run_code").contains(part), "{part}");
        assert!(!about("run,session", "sandbox_run_cell").contains(part), "{part} is said once");
    }
    assert!(about("run,session", "sandbox_run_cell").ends_with("The rest is as in sandbox_run_code."));
    assert!(about("run,tools", "sandbox_run_code").contains("find them by sandbox_search_tools"));
}
