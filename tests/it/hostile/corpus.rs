//! The programs and the table of `tests/hostile/`. A program that is equal in every language is written in Perl, which
//! every runner image contains; each language has its own launcher for it.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use serde_json::Value;

const LANGUAGES: [(&str, &str); 3] = [("python", "py"), ("javascript", "js"), ("bash", "sh")];
/// The limit of a program that is to reach it.
const WALL_SHORT: Duration = Duration::from_millis(1500);
/// The limit of one that is to be refused processes first, and hangs then.
const WALL_OF_BOMBS: Duration = Duration::from_secs(5);
/// The limit of one that is to end before.
const WALL_LONG: Duration = Duration::from_secs(45);
/// What one may have that is to use it up.
const MEMORY_SMALL_BYTES: u64 = 96 << 20;

/// One line of the table.
pub struct Row {
    pub name: String,
    endings: Vec<String>,
    of_one: BTreeMap<String, Vec<String>>,
}

/// One program in one language.
pub struct Attack {
    pub name: String,
    pub language: &'static str,
    pub program: String,
    pub endings: Vec<String>,
    pub wall: Duration,
    pub memory_bytes: Option<u64>,
}

impl Attack {
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.name, self.language)
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/hostile")
}

pub fn read(file: &str) -> Option<String> {
    fs::read_to_string(folder().join(file)).ok()
}

pub fn files() -> Vec<String> {
    let entries = fs::read_dir(folder()).expect("tests/hostile");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

pub fn rows() -> Vec<Row> {
    let table = read("table.txt").expect("the table");
    table.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

fn row(line: &str) -> Row {
    let mut words = line.split_whitespace();
    let endings = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
    let name = words.next().expect("a name").to_owned();
    let usual = endings(words.next().unwrap_or_else(|| panic!("{name}: no ending")));
    let of_one = words.map(|word| word.split_once('=').expect("language=ending"));
    Row { name, endings: usual, of_one: of_one.map(|(l, text)| (l.to_owned(), endings(text))).collect() }
}

/// Every row in every language, or each in one of them, in turn. With `HOSTILE` set, only those whose name begins so.
pub fn attacks(all: bool) -> Vec<Attack> {
    let mut attacks = Vec::new();
    let only = std::env::var("HOSTILE").unwrap_or_default();
    for (number, row) in rows().iter().enumerate().filter(|(_, row)| row.name.starts_with(&only)) {
        let languages = LANGUAGES.iter().enumerate();
        attacks.extend(languages.filter(|(n, _)| all || *n == number % 3).map(|(_, (l, end))| attack(row, l, end)));
    }
    attacks
}

fn attack(row: &Row, language: &'static str, ending: &str) -> Attack {
    let program = read(&format!("{}.{ending}", row.name)).unwrap_or_else(|| started(language, &perl(&row.name)));
    let endings = row.of_one.get(language).unwrap_or(&row.endings).clone();
    let has = |word: &str| endings.iter().any(|ending| ending == word);
    let wall = if has("process_limit") {
        WALL_OF_BOMBS
    } else if has("timed_out") {
        WALL_SHORT
    } else {
        WALL_LONG
    };
    let memory_bytes = (has("out_of_memory") && !has("process_limit")).then_some(MEMORY_SMALL_BYTES);
    Attack { name: row.name.clone(), language, program, endings, wall, memory_bytes }
}

/// A program in Perl with what stands before each.
pub fn perl(name: &str) -> String {
    let program = read(&format!("{name}.pl")).unwrap_or_else(|| panic!("{name} is in none of the languages"));
    read("prelude.pl").expect("the prelude") + program.as_str()
}

/// Perl in the place of the program, or, where a program cannot be replaced, as its child whose end is its own.
pub fn started(language: &str, perl: &str) -> String {
    let text = Value::from(perl);
    match language {
        "python" => format!("import os\nos.execvp(\"perl\", [\"perl\", \"-e\", {text}])\n"),
        "javascript" => format!(
            "const end = require(\"child_process\").spawnSync(\"perl\", [\"-e\", {text}], {{ stdio: \"inherit\" }});\n\
             if (end.signal) process.kill(process.pid, end.signal);\nelse process.exit(end.status);\n"
        ),
        _ => format!("exec perl - <<'THE-END-OF-IT'\n{perl}THE-END-OF-IT\n"),
    }
}

/// How a run ended, in the words of the table.
pub fn ending(answer: &Value) -> String {
    let (outcome, text) = (&answer["outcome"], answer["result"]["stdout"].as_str().unwrap_or_default());
    match outcome["ended"].as_str().unwrap_or("no verdict") {
        "exited" if outcome["exitCode"] == 0 && text.contains("held: ") => "held".to_owned(),
        "exited" => format!("exited:{}", outcome["exitCode"]),
        "signaled" => format!("signaled:{}", outcome["signal"].as_str().unwrap_or_default()),
        word => word.to_owned(),
    }
}
