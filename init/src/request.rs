//! The sequence of a request's frames: one configuration, the pieces of one program, one start; then input and
//! signals. Knows which frame may follow which; must not know how an action is executed.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde::Deserialize;
use thiserror::Error;

use crate::{frame::InputFrame, inspection};

/// All pieces of a program together.
pub const PROGRAM_MAX_BYTES: usize = 64 << 20;

/// Standard input that may come before the start. What comes after it waits until the program reads.
pub const EARLY_STDIN_MAX_BYTES: usize = 1 << 20;

/// The payload of the frame CONFIG.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The program's arguments.
    pub args: Vec<String>,
    /// Added to the environment of the image.
    pub env: BTreeMap<String, String>,
    /// The program's time limit; 0 for none.
    pub wall_ms: u64,
    /// How much longer this process waits before it ends the program itself: the server goes first.
    pub grace_ms: u64,
    /// The kernelspec of a session, which has no program.
    pub kernel: Option<String>,
    /// Whether the sandbox has channels to the server.
    pub channels: bool,
    /// A certificate that programs have to trust, in PEM.
    pub authority: Option<String>,
    /// The addresses to try, if the program asks for the report of [`inspection`]. Not a member of the frame.
    #[serde(skip)]
    pub inspection: Option<Vec<String>>,
}

impl Config {
    fn parse(payload: &[u8]) -> Result<Self, RequestError> {
        let config: Self = serde_json::from_slice(payload).map_err(|error| RequestError::Config(error.to_string()))?;
        if config.args.iter().chain(config.env.values()).chain(&config.kernel).any(|text| text.contains('\0')) {
            return Err(RequestError::Config("an argument or a variable contains a NUL".to_owned()));
        }
        if config.env.keys().any(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(RequestError::Config("a variable has no name, or one with = or NUL in it".to_owned()));
        }
        Ok(config)
    }
}

/// What the sandbox does with a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Append this to the program's file.
    Append(&'a [u8]),
    /// Start the program.
    Start(Config),
    /// Give this to the program's standard input.
    Input(&'a [u8]),
    /// No more input.
    EndInput,
    /// Send the program a signal.
    Signal(Signal),
    /// Give this to the process that has the channels.
    Channels(&'a [u8]),
    /// Do this with the files.
    Files(&'a [u8]),
    /// The frame needs no action.
    Nothing,
}

/// A request that cannot be carried out.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    #[error("the frame {0:?} may not come here")]
    Sequence(InputFrame),
    #[error("the configuration cannot be read: {0}")]
    Config(String),
    #[error("the program is longer than {PROGRAM_MAX_BYTES} bytes")]
    ProgramLength,
    #[error("more than {EARLY_STDIN_MAX_BYTES} bytes of input came before the start")]
    EarlyInput,
    #[error("the payload of the frame {0:?} has a wrong length")]
    Payload(InputFrame),
    #[error("there is no signal {0}")]
    Signal(u8),
}

/// The state of the request.
#[derive(Debug, Default)]
pub struct Request {
    config: Option<Config>,
    inspection: Option<Vec<String>>,
    program_bytes: usize,
    early_bytes: usize,
    started: bool,
    input_ended: bool,
}

impl Request {
    /// Whether the start frame has arrived.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Takes the next frame.
    pub fn take<'a>(&mut self, kind: InputFrame, payload: &'a [u8]) -> Result<Action<'a>, RequestError> {
        self.check_sequence(kind)?;
        match kind {
            InputFrame::Config => {
                self.config = Some(Config::parse(payload)?);
                Ok(Action::Nothing)
            }
            InputFrame::Program => self.program(payload),
            InputFrame::Go => self.go(payload),
            InputFrame::Stdin => self.input(payload),
            InputFrame::StdinEnd if payload.is_empty() => {
                self.input_ended = true;
                Ok(Action::EndInput)
            }
            InputFrame::Signal => match *payload {
                [number] => signal(number).map(Action::Signal),
                _ => Err(RequestError::Payload(kind)),
            },
            InputFrame::Channels => Ok(Action::Channels(payload)),
            InputFrame::Files => Ok(Action::Files(payload)),
            InputFrame::Attached if payload.is_empty() => Ok(Action::Nothing),
            InputFrame::Attached | InputFrame::StdinEnd => Err(RequestError::Payload(kind)),
        }
    }

    fn check_sequence(&self, kind: InputFrame) -> Result<(), RequestError> {
        let fits = match kind {
            InputFrame::Config => self.config.is_none(),
            InputFrame::Program => self.config.as_ref().is_some_and(|config| config.kernel.is_none()) && !self.started,
            InputFrame::Go => self.config.is_some() && !self.started,
            InputFrame::Stdin | InputFrame::StdinEnd => self.config.is_some() && !self.input_ended,
            InputFrame::Signal => self.started,
            InputFrame::Attached => !self.started,
            InputFrame::Files => true,
            InputFrame::Channels => self.started && self.config.as_ref().is_some_and(|config| config.channels),
        };
        if fits { Ok(()) } else { Err(RequestError::Sequence(kind)) }
    }

    fn program<'a>(&mut self, payload: &'a [u8]) -> Result<Action<'a>, RequestError> {
        if self.program_bytes == 0 {
            self.inspection = inspection::targets(payload);
        }
        self.program_bytes += payload.len();
        if self.program_bytes > PROGRAM_MAX_BYTES {
            return Err(RequestError::ProgramLength);
        }
        Ok(Action::Append(payload))
    }

    fn go(&mut self, payload: &[u8]) -> Result<Action<'static>, RequestError> {
        if !payload.is_empty() {
            return Err(RequestError::Payload(InputFrame::Go));
        }
        self.started = true;
        let config = self.config.clone().unwrap_or_default();
        Ok(Action::Start(Config { inspection: self.inspection.take(), ..config }))
    }

    fn input<'a>(&mut self, payload: &'a [u8]) -> Result<Action<'a>, RequestError> {
        if !self.started {
            self.early_bytes += payload.len();
            if self.early_bytes > EARLY_STDIN_MAX_BYTES {
                return Err(RequestError::EarlyInput);
            }
        }
        Ok(Action::Input(payload))
    }
}

fn signal(number: u8) -> Result<Signal, RequestError> {
    Signal::from_named_raw(i32::from(number)).ok_or(RequestError::Signal(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured() -> Request {
        let mut request = Request::default();
        request.take(InputFrame::Config, b"{}").expect("an empty configuration");
        request
    }

    #[test]
    fn configuration_fields_are_optional_and_unknown_fields_are_refused() {
        assert_eq!(Config::parse(b"{}"), Ok(Config::default()));
        let full = Config::parse(br#"{"args":["a"],"env":{"K":"v"},"wallMs":5,"graceMs":2}"#).expect("full");
        assert_eq!((full.args.len(), full.env.len(), full.wall_ms, full.grace_ms), (1, 1, 5, 2));
        for wrong in
            ["", "[1", "{\"more\":1}", "{\"args\":[\"\\u0000\"]}", "{\"env\":{\"A=B\":\"\"}}", "{\"wallMs\":-1}"]
        {
            assert!(matches!(Config::parse(wrong.as_bytes()), Err(RequestError::Config(_))), "{wrong}");
        }
    }

    #[test]
    fn configuration_must_come_first_and_only_once() {
        for kind in [InputFrame::Program, InputFrame::Go, InputFrame::Stdin, InputFrame::StdinEnd, InputFrame::Signal] {
            assert_eq!(Request::default().take(kind, &[]), Err(RequestError::Sequence(kind)));
        }
        assert_eq!(configured().take(InputFrame::Config, b"{}"), Err(RequestError::Sequence(InputFrame::Config)));
    }

    #[test]
    fn program_cannot_change_after_the_start() {
        let mut request = configured();
        assert_eq!(request.take(InputFrame::Signal, &[9]), Err(RequestError::Sequence(InputFrame::Signal)));
        assert_eq!(request.take(InputFrame::Go, &[]), Ok(Action::Start(Config::default())));
        assert_eq!(request.take(InputFrame::Go, &[]), Err(RequestError::Sequence(InputFrame::Go)));
        assert_eq!(request.take(InputFrame::Program, &[]), Err(RequestError::Sequence(InputFrame::Program)));
        assert_eq!(request.take(InputFrame::Signal, &[9]), Ok(Action::Signal(Signal::KILL)));
        assert_eq!(request.take(InputFrame::Signal, &[0]), Err(RequestError::Signal(0)));
        assert_eq!(request.take(InputFrame::Signal, &[9, 9]), Err(RequestError::Payload(InputFrame::Signal)));
    }

    #[test]
    fn session_names_its_kernel_and_has_no_program() {
        let mut request = Request::default();
        request.take(InputFrame::Config, br#"{"kernel":"python3"}"#).expect("a session");
        assert_eq!(request.take(InputFrame::Program, &[]), Err(RequestError::Sequence(InputFrame::Program)));
        let Ok(Action::Start(config)) = request.take(InputFrame::Go, &[]) else { panic!("no start") };
        assert_eq!(config.kernel.as_deref(), Some("python3"));
        assert!(Config::parse(br#"{"kernel":"a\u0000"}"#).is_err() && Config::parse(br#"{"kernel":1}"#).is_err());
    }

    #[test]
    fn channels_need_the_configuration_and_the_start() {
        let frame = |request: &mut Request| request.take(InputFrame::Channels, &[1]);
        let refused = Err(RequestError::Sequence(InputFrame::Channels));
        let mut without = configured();
        without.take(InputFrame::Go, &[]).expect("a start");
        assert_eq!(frame(&mut without), refused);
        let mut with = Request::default();
        with.take(InputFrame::Config, br#"{"channels":true}"#).expect("channels");
        assert_eq!(frame(&mut with), refused);
        with.take(InputFrame::Go, &[]).expect("a start");
        assert_eq!(frame(&mut with), Ok(Action::Channels(&[1])));
    }

    #[test]
    fn input_ends_once_and_is_bounded_before_the_start() {
        let mut request = configured();
        let early = vec![0; EARLY_STDIN_MAX_BYTES];
        assert_eq!(request.take(InputFrame::Stdin, &early), Ok(Action::Input(&early)));
        assert_eq!(request.take(InputFrame::Stdin, &[0]), Err(RequestError::EarlyInput));
        let mut request = configured();
        request.take(InputFrame::Go, &[]).expect("start");
        assert_eq!(request.take(InputFrame::StdinEnd, &[]), Ok(Action::EndInput));
        assert_eq!(request.take(InputFrame::StdinEnd, &[]), Err(RequestError::Sequence(InputFrame::StdinEnd)));
        assert_eq!(request.take(InputFrame::Stdin, &[0]), Err(RequestError::Sequence(InputFrame::Stdin)));
    }

    #[test]
    fn program_size_is_bounded() {
        let mut request = configured();
        let piece = vec![0; 1 << 20];
        for _ in 0..64 {
            request.take(InputFrame::Program, &piece).expect("within the limit");
        }
        assert_eq!(request.take(InputFrame::Program, &[0]), Err(RequestError::ProgramLength));
    }
}
