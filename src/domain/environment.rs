//! What a program is started with: its arguments, and variables for its environment. The values of variables can be
//! secrets, so no output contains them.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{
    error::{Failure, Operation},
    text::{items, json_bytes, shown},
};

/// How many arguments a program takes.
pub const ARGS_MAX: usize = 256;
/// The longest argument, in bytes: that of Linux without the zero byte after it.
const ARG_BYTES_MAX: usize = (128 << 10) - 1;
/// All arguments, in bytes of JSON: beside the longest variables they fit into one frame.
const ARGS_JSON_BYTES_MAX: usize = 512 << 10;

/// How many variables one program takes, and their names and values together, in bytes.
const VARIABLES_MAX: usize = 64;
const BYTES_MAX: usize = 64 << 10;

/// Checks the arguments of a program.
///
/// # Errors
/// [`crate::domain::error::Code::InvalidArgument`] for `args`.
pub fn check_args(args: &[String]) -> Result<(), Failure> {
    let is_short = |text: &String| text.len() <= ARG_BYTES_MAX && !text.contains('\0');
    // With the quotes and the comma.
    let bytes = args.iter().map(|text| json_bytes(text) + 3).sum::<usize>();
    if args.len() > ARGS_MAX || bytes > ARGS_JSON_BYTES_MAX || !args.iter().all(is_short) {
        let why = format!(
            "give at most {ARGS_MAX} strings without zero bytes, each of at most {ARG_BYTES_MAX} bytes and together of \
             at most {ARGS_JSON_BYTES_MAX} in JSON: write long data to a file and read it from /data"
        );
        return Err(Failure::argument("args", why).see(Operation::WriteFile));
    }
    Ok(())
}

/// Variables that are added to those of the image.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// With this variable, unless it is set.
    #[must_use]
    pub fn or(mut self, name: &str, value: &str) -> Self {
        self.0.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        self
    }

    /// With the variables of another, except those that it sets itself.
    #[must_use]
    pub fn layered_over(self, mut other: Self) -> Self {
        other.0.extend(self.0);
        other
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The names that clients may set.
#[derive(Debug, Clone, Default)]
pub struct AllowedVariables(Vec<String>);

impl AllowedVariables {
    /// Names separated by commas. `None` when one of them is no name of a variable: letters, digits and `_`, no digit
    /// first.
    pub fn parse(list: &str) -> Option<Self> {
        let names: Vec<_> = items(list).map(str::to_owned).collect();
        let plain = |name: &String| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && !name.starts_with(|c: char| c.is_ascii_digit())
        };
        names.iter().all(plain).then_some(Self(names))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks what a client wants to set.
    ///
    /// # Errors
    /// [`crate::domain::error::Code::InvalidArgument`] for `env`; the message repeats no value.
    pub fn check(&self, environment: &Environment) -> Result<(), Failure> {
        let variables = &environment.0;
        let refuse = |why: String| Err(Failure::argument("env", why));
        if let Some(name) = variables.keys().find(|name| !self.0.contains(name)) {
            let allowed = if self.is_empty() { "none".to_owned() } else { self.to_string() };
            return refuse(format!(
                "`{}` may not be set; the operator allows names with SANDBOX_ENV__ALLOWED (now: {allowed})",
                shown(name)
            ));
        }
        let bytes = variables.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if variables.len() > VARIABLES_MAX || bytes > BYTES_MAX || variables.values().any(|value| value.contains('\0'))
        {
            return refuse(format!(
                "give at most {VARIABLES_MAX} variables with {BYTES_MAX} bytes together, without zero bytes"
            ));
        }
        Ok(())
    }
}

/// The names, with commas.
impl fmt::Display for AllowedVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Environment {
        Environment(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn arguments_that_no_program_can_be_given_are_refused() {
        let repeated = |text: &str, count| vec![text.to_owned(); count];
        let longest = "x".repeat(ARG_BYTES_MAX);
        for good in [vec![], repeated("", ARGS_MAX), repeated(&longest, 3)] {
            assert_eq!(check_args(&good), Ok(()));
        }
        let controls = "\u{1}".repeat(ARG_BYTES_MAX);
        for bad in [
            repeated("", ARGS_MAX + 1),
            repeated("a\0", 1),
            repeated(&format!("{longest}x"), 1),
            repeated(&longest, 4),
            repeated(&controls, 1),
        ] {
            let why = check_args(&bad).expect_err("refused").message;
            assert!(why.starts_with("args: ") && why.len() < 300, "{why}");
        }
    }

    #[test]
    fn variables_of_a_command_take_precedence_over_those_of_its_sandbox() {
        let sandbox = variables(&[("A", "1"), ("B", "1")]);
        assert_eq!(variables(&[("B", "2"), ("C", "2")]).layered_over(sandbox.clone()).0.len(), 3);
        assert_eq!(variables(&[("B", "2")]).layered_over(sandbox.clone()).0, variables(&[("A", "1"), ("B", "2")]).0);
        assert_eq!(Environment::default().layered_over(sandbox.clone()).0, sandbox.0);
    }

    #[test]
    fn only_allowed_names_are_set_and_no_value_is_shown() {
        let allowed = AllowedVariables::parse(" API_KEY, TZ ,").expect("names");
        let given = variables(&[("API_KEY", "hidden")]);
        assert_eq!(allowed.check(&given), Ok(()));
        assert_eq!(format!("{given:?}"), r#"{"API_KEY"}"#);
        assert_eq!(serde_json::to_string(&given).expect("JSON"), r#"{"API_KEY":"hidden"}"#);
        let long = "x".repeat(BYTES_MAX);
        for bad in [("PATH", "hidden"), ("api_key", "hidden"), ("", "hidden"), ("TZ", "hid\0den"), ("TZ", &long)] {
            let why = allowed.check(&variables(&[bad])).expect_err("refused").message;
            assert!(why.starts_with("env: ") && !why.contains("hid") && why.len() < 500, "{bad:?}: {why}");
        }
        assert!(AllowedVariables::default().check(&variables(&[("TZ", "UTC")])).is_err());
        for bad in ["A B", "1A", "A=B", "A-B", "É"] {
            assert!(AllowedVariables::parse(bad).is_none(), "{bad}");
        }
    }
}
