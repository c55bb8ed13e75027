//! What is run.

/// One program.
pub struct Program {
    /// What the table calls it.
    pub name: &'static str,
    /// What it is written in.
    pub language: &'static str,
    /// Its text.
    pub code: &'static str,
    /// The interpreter on the host, where there is one to compare with.
    pub host: Option<&'static [&'static str]>,
}

/// All of them.
pub const PROGRAMS: [Program; 4] = [
    Program { name: "Python hello", language: "python", code: "print(1)\n", host: Some(&["python3", "-"]) },
    Program {
        name: "Python pandas",
        language: "python",
        code: "import pandas as pd\nprint(pd.DataFrame({'a': [1, 2, 1], 'b': [1, 2, 3]}).groupby('a').sum())\n",
        host: None,
    },
    Program {
        name: "TypeScript hello",
        language: "typescript",
        code: "const n: number = 1; console.log(n)\n",
        host: None,
    },
    Program { name: "Bash hello", language: "bash", code: "echo 1\n", host: Some(&["bash"]) },
];

/// The one of which many run at once: the least work beside the sandbox itself.
pub const LIGHTEST: &Program = &PROGRAMS[3];
