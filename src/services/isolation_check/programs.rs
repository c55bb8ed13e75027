//! Programs that print what the kernel reports about them, in the languages of the usual runners. Each prints the same:
//! a line `== name` before each file, `== writable` with `yes` when `/data` takes a file, and `== groups` with `open`
//! when a folder can be created below `/sys/fs/cgroup`. Pure.

use crate::domain::id::Language;

/// The files to print. A missing file is an empty part.
const FILES: [&str; 8] = [
    "/proc/self/status",
    "/proc/net/dev",
    "/proc/self/mountinfo",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/pids.max",
    "/sys/fs/cgroup/pids/pids.max",
    "/proc/sys/kernel/core_pattern",
];

const BASH: &str = r#"for f in FILES; do echo "== $f"; cat "$f" 2>/dev/null; done
echo "== writable"; : > /data/self-test && echo yes
echo "== groups"; mkdir /sys/fs/cgroup/self-test 2>/dev/null && echo open
exit 0
"#;

const PYTHON: &str = r#"import os
for name in "FILES".split():
    print("==", name)
    try:
        print(open(name).read())
    except OSError:
        pass
print("== writable")
open("/data/self-test", "w").close()
print("yes")
print("== groups")
try:
    os.mkdir("/sys/fs/cgroup/self-test")
    print("open")
except OSError:
    pass
"#;

const NODE: &str = r#"for (const name of "FILES".split(" ")) {
  console.log("==", name);
  try { console.log(fs.readFileSync(name, "utf8")); } catch {}
}
console.log("== writable");
fs.writeFileSync("/data/self-test", "");
console.log("yes");
console.log("== groups");
try { fs.mkdirSync("/sys/fs/cgroup/self-test"); console.log("open"); } catch {}
"#;

/// The program for a language, if there is one.
pub(super) fn of(language: &Language) -> Option<String> {
    let text = match language.as_str() {
        "bash" | "sh" => BASH.to_owned(),
        "python" => PYTHON.to_owned(),
        "javascript" => format!("const fs = require(\"node:fs\");\n{NODE}"),
        "typescript" => format!("import fs from \"node:fs\";\n{NODE}"),
        _ => return None,
    };
    Some(text.replace("FILES", &FILES.join(" ")))
}
