//! Compares the generated documents with the code. `UPDATE=1 cargo test --test it docs` rewrites them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use mcp_sandbox_server::{api::http::openapi, config};

use crate::tidy::{Source, sources};

const BEGIN: &str = "<!-- settings: made by the code, see tests/it/docs.rs -->\n";
const END: &str = "<!-- end of settings -->\n";

fn at_root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Fails when the file is out of date, or rewrites it when `UPDATE` is set.
fn hold(name: &str, actual: &str, expected: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(at_root(name), expected).expect(name);
        return;
    }
    assert!(actual == expected, "{name} is out of date: run `UPDATE=1 cargo test --test it docs` and commit.");
}

fn read(name: &str) -> String {
    std::fs::read_to_string(at_root(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn env_example_matches_the_settings() {
    let name = ".env.example";
    hold(name, &std::fs::read_to_string(at_root(name)).unwrap_or_default(), &config::example());
}

#[test]
fn settings_page_matches_the_settings() {
    let name = "docs/settings.md";
    let text = read(name);
    let (before, rest) = text.split_once(BEGIN).expect("the mark where the table begins");
    let (_, after) = rest.split_once(END).expect("the mark where the table ends");
    hold(name, &text, &format!("{before}{BEGIN}{}{END}{after}", config::table()));
}

#[test]
fn error_list_matches_the_code() {
    let name = "docs/errors.md";
    hold(name, &std::fs::read_to_string(at_root(name)).unwrap_or_default(), &openapi::errors());
}

#[test]
fn openapi_document_matches_the_code() {
    let name = "docs/generated/openapi.json";
    hold(name, &std::fs::read_to_string(at_root(name)).unwrap_or_default(), &openapi::text());
}

/// The types that have schemas: those that derive one, from behind that, and those of `answers!`.
fn described(text: &str) -> impl Iterator<Item = &str> {
    let derived = text.split("#[derive(").filter_map(|rest| rest.split_once("ToSchema)]")).map(|(_, item)| item);
    let answers = text.split("\nanswers! {").skip(1).filter_map(|rest| rest.split("\n}\n").next());
    let answers = answers.flat_map(|block| block.split("\n    }\n"));
    derived.filter(|item| !item.contains("struct $name")).chain(answers)
}

/// The name of a type's schema, from its source.
fn schema_name(item: &str) -> Option<&str> {
    let declared = ["struct ", "enum "].into_iter().filter_map(|kind| item.find(kind)).min()?;
    let (attributes, declaration) = item.split_at(declared);
    let (_, name) = attributes.split_once("schema(as = ").or_else(|| declaration.split_once(' '))?;
    name.split(|c: char| !c.is_alphanumeric()).next()
}

/// The document has one schema for each name: it describes only one of two types that share a name.
#[test]
fn types_have_schemas_of_different_names() {
    let mut places = BTreeMap::new();
    for Source { name: place, text } in sources() {
        for item in described(&text) {
            let name = schema_name(item).unwrap_or_else(|| panic!("src/{place}.rs: a schema without a name"));
            let other = places.insert(name.to_owned(), place.clone());
            assert!(other.is_none(), "src/{place}.rs and src/{}.rs: {name}", other.unwrap_or_default());
        }
    }
    assert!(places.len() > 50, "{} schemas", places.len());
}

/// The shell blocks of a page.
pub fn shell_commands(page: &str) -> impl Iterator<Item = &str> {
    page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest))
}

/// The clients that `./test.sh --clients` runs, each with its snippet.
const CLIENTS: &str = "tests/clients/models/clients.toml";

/// What README tells a user to type, by its beginning, and which test does it.
const TESTED_COMMANDS: [(&str, &str); 3] = [
    ("./quickstart.sh\n", "quickstart::"),
    ("claude mcp add ", "./test.sh --clients"),
    ("MCP_API_TOKEN=$(sed ", "compose::compose_file_serves_on_one_port"),
];

#[test]
fn every_command_of_readme_is_run_by_a_test() {
    let readme = read("README.md");
    for command in shell_commands(&readme) {
        let tested = TESTED_COMMANDS.iter().find(|(beginning, _)| command.starts_with(beginning));
        let (_, test) = tested.unwrap_or_else(|| panic!("no test is known to run this command of README:\n{command}"));
        assert!(is_a_test(test, command), "there is no test {test}, or it does not run this:\n{command}");
    }
    assert_eq!(shell_commands(&readme).count(), TESTED_COMMANDS.len());
    for none in ["quickstart::none", "compose::at_root", "none::", "quickstart", "./test.sh --none"] {
        assert!(!is_a_test(none, ""), "{none}");
    }
}

/// `./test.sh --clients` compares the whole page; this finds an edit of a snippet without running the clients.
#[test]
fn snippets_of_clients_are_those_that_are_run() {
    let (page, clients) = (read("docs/clients.md"), read(CLIENTS));
    let snippets = clients.split("\nsnippet = '''\n").skip(1).map(|rest| rest.split("'''").next().unwrap_or(rest));
    let missing: Vec<_> = snippets.filter(|snippet| !page.contains(&format!("\n{}\n```\n", snippet.trim()))).collect();
    assert!(missing.is_empty(), "docs/clients.md has others: {missing:#?}");
    assert_eq!(clients.matches("\nsnippet = '''\n").count(), clients.matches("\ntitle = ").count());
}

/// Whether this is an option of `test.sh` that runs the command, or a test in a module of `tests/it`, or such a module.
fn is_a_test(name: &str, command: &str) -> bool {
    if let Some(option) = name.strip_prefix("./test.sh ") {
        let options = [("--clients", CLIENTS)];
        let of = options.iter().find(|(known, _)| *known == option);
        return of.is_some_and(|(_, runs)| read("test.sh").contains(option) && read(runs).contains(command));
    }
    let Some((module, function)) = name.split_once("::") else { return false };
    let source = std::fs::read_to_string(at_root("tests/it").join(module).with_extension("rs")).unwrap_or_default();
    let is_marked = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let lines: Vec<_> = source.lines().collect();
    let begins = |line: &&str| line.contains(&format!("fn {function}("));
    let Some(at) = lines.iter().position(begins) else { return function.is_empty() && lines.iter().any(is_marked) };
    lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("///")).any(is_marked)
}

/// The pages for people.
fn pages() -> impl Iterator<Item = PathBuf> {
    let pages = std::fs::read_dir(at_root("docs")).expect("docs").map(|entry| entry.expect("an entry").path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let names = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SPECIFICATION.md", "CHANGELOG.md"];
    pages.chain(names.map(at_root)).chain([at_root("runners/README.md")])
}

/// Every relative link of the pages leads to a file.
#[test]
fn links_between_pages_lead_somewhere() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        let folder = page.parent().expect("a folder");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let elsewhere = target.is_empty() || target.contains("://");
            assert!(elsewhere || folder.join(target).exists(), "{} links to {target}", page.display());
        }
    }
}

/// A promise that stands twice, as after a merge, is corrected in one place alone.
#[test]
fn each_promise_stands_once() {
    let page = read("SPECIFICATION.md");
    let promises: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).collect();
    assert!(promises.len() > 300, "{} rows", promises.len());
    let mut seen = BTreeSet::new();
    for (promise, _) in promises.into_iter().filter(|(promise, _)| !matches!(*promise, "promise" | "---")) {
        assert!(seen.insert(promise), "SPECIFICATION.md has this row twice: {promise}");
    }
}

/// The files that a source includes by `#[path]`, each with the name of that source and the name of the module.
fn inclusions(source: &Source) -> impl Iterator<Item = (String, (String, String))> {
    source.text.split("#[path = \"").skip(1).filter_map(move |rest| {
        let (file, rest) = rest.split_once(".rs\"]")?;
        let (module, _) = rest.trim_start().strip_prefix("mod ")?.split_once(';')?;
        let file = Path::new(&source.name).with_file_name(file).display().to_string();
        Some((file, (source.name.clone(), module.to_owned())))
    })
}

fn module_of(file: &str, included: &BTreeMap<String, (String, String)>) -> String {
    match included.get(file) {
        Some((by, module)) => format!("{}::{module}", module_of(by, included)),
        None => file.replace('/', "::"),
    }
}

/// The paths of the library's tests. Each is here as a test of its file and of a module `tests` in that.
fn library_tests() -> Vec<String> {
    let sources = sources();
    let included: BTreeMap<_, _> = sources.iter().flat_map(inclusions).collect();
    let mut tests = Vec::new();
    for source in &sources {
        let module = module_of(&source.name, &included);
        let mut is_marked = false;
        for line in source.text.lines().map(str::trim) {
            is_marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let Some((_, test)) = line.split_once("fn ").filter(|_| is_marked) else { continue };
            let name = test.split('(').next().unwrap_or_default();
            tests.extend([format!("{module}::{name}"), format!("{module}::tests::{name}")]);
            is_marked = false;
        }
    }
    tests
}

/// The paths of the tests that this program has.
fn own_tests() -> Vec<String> {
    let program = std::env::current_exe().expect("this program");
    let listed = Command::new(program).args(["--list", "--format", "terse"]).output().expect("a list");
    let listed = String::from_utf8(listed.stdout).expect("text");
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// `cargo test` with a filter that no test matches passes and tests nothing; with a second filter it does not start,
/// unless they follow `--`.
#[test]
fn commands_of_the_specification_run_tests() {
    let page = read("SPECIFICATION.md");
    for (target, tests) in [("--lib ", library_tests()), ("--test it ", own_tests())] {
        let commands = page.split('`').filter_map(|code| code.split_once(target));
        let commands: Vec<_> = commands.map(|(_, filters)| filters.split_whitespace().collect::<Vec<_>>()).collect();
        assert!(commands.len() > 100, "{} commands with {target}", commands.len());
        for command in &commands {
            let filters = command.strip_prefix(&["--"]).unwrap_or(command);
            assert!(filters.len() < 2 || command[0] == "--", "{target}{command:?}: several filters follow `--`");
            let matches = |filter: &&str| tests.iter().any(|test| test.contains(*filter));
            assert!(filters.iter().all(matches), "{target}{command:?}: no test has this in its path");
        }
    }
}

/// The cells of the comparison in a page, row by row.
fn comparison(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().skip_while(|line| !line.contains("| Piston |")).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').map(str::trim).collect()).collect()
}

/// README has the table of the page, which adds to each cell the number of its source.
#[test]
fn comparison_of_readme_has_a_source_for_each_cell() {
    let (readme, page) = (read("README.md"), read("docs/comparison.md"));
    let (shown, sourced) = (comparison(&readme), comparison(&page));
    assert_eq!((shown.len(), sourced.len()), (12, 12), "a head, a rule and ten points");
    let mut used = BTreeSet::new();
    for (at, (shown, sourced)) in shown.iter().zip(&sourced).enumerate() {
        let split = |cell: &&str| {
            let (text, number) = cell.strip_suffix(']')?.rsplit_once(" [")?;
            Some((text.to_owned(), number.to_owned()))
        };
        let plain: Vec<_> =
            sourced.iter().map(|cell| split(cell).map_or_else(|| (*cell).to_owned(), |(text, _)| text)).collect();
        assert_eq!(*shown, plain);
        // The first is the point, and the last column has one source for all.
        for cell in sourced[2..8].iter().filter(|cell| at > 1 && **cell != "–") {
            let (_, number) = split(cell).unwrap_or_else(|| panic!("{cell} has no source"));
            used.insert(number);
        }
    }
    let lines = page.lines().filter_map(|line| line.split_once(". "));
    let listed = lines.filter(|(number, _)| number.parse::<u8>().is_ok()).map(|(number, _)| number.to_owned());
    assert_eq!(used, listed.collect::<BTreeSet<_>>());
    for test in page.split('`').filter(|part| part.starts_with("tests/")) {
        assert!(at_root(test).exists(), "there is no {test}");
    }
}

/// Commands of Compose that take a service.
const TAKE_A_SERVICE: [&str; 5] = ["exec", "logs", "restart", "start", "stop"];

#[test]
fn commands_of_compose_name_a_service_of_the_compose_file() {
    let compose = read("docker-compose.yml");
    let mut tried = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for command in text.split("docker compose ").skip(1) {
            let mut words = command.split_whitespace().map(|word| word.trim_matches(['`', '.', ',', ':', ';']));
            if TAKE_A_SERVICE.contains(&words.next().unwrap_or_default()) {
                let service = words.find(|word| !word.starts_with('-')).unwrap_or_default();
                let is_there = compose.contains(&format!("\n  {service}:\n"));
                assert!(is_there, "{} names the service {service}", page.display());
                tried += 1;
            }
        }
    }
    assert!(tried > 5, "{tried} commands");
}
