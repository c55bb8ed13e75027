//! A lease on a file. The tests of the server, which are another crate, have this file too.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A process that holds a write lease on a file and does not give it up.
pub(crate) struct Holder(Child);

impl Holder {
    pub(crate) fn of(file: &Path) -> Self {
        // 1024 is F_SETLEASE and 1 is F_WRLCK.
        let hold = "$| = 1; $SIG{IO} = 'IGNORE'; open(F, '+<', $ARGV[0]) or die; fcntl(F, 1024, 1) or die \"$!\"; \
                    print \"held\\n\"; sleep 600";
        let mut command = Command::new("perl");
        let mut child = command.args(["-e", hold]).arg(file).stdout(Stdio::piped()).spawn().expect("perl");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("it ends");
    }
}
