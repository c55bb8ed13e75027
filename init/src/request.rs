//! What is asked of the sandbox, frame by frame: one configuration, the pieces of one program, one start; then input
//! and signals. Knows which frame may follow which, and nothing of how any of it is done.

use std::{collections::BTreeMap, fmt};

use rustix::process::Signal;
use serde::Deserialize;

use crate::frame::Ask;

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
    /// How long the program may take; 0 for ever.
    pub wall_ms: u64,
    /// How much longer this process waits before it ends the program itself: the server goes first.
    pub grace_ms: u64,
}

impl Config {
    fn parse(payload: &[u8]) -> Result<Self, Fault> {
        let config: Self = serde_json::from_slice(payload).map_err(|error| Fault::Config(error.to_string()))?;
        if config.args.iter().chain(config.env.values()).any(|text| text.contains('\0')) {
            return Err(Fault::Config("an argument or a variable contains a NUL".to_owned()));
        }
        if config.env.keys().any(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(Fault::Config("a variable has no name, or one with = or NUL in it".to_owned()));
        }
        Ok(config)
    }
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    /// Append this to the program's file.
    Append(Vec<u8>),
    /// Start the program.
    Start(Config),
    /// Give this to the program's standard input.
    Input(Vec<u8>),
    /// No more input.
    EndInput,
    /// Send the program a signal.
    Signal(Signal),
    /// Nothing yet.
    Nothing,
}

/// A request that cannot be carried out.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// A frame that may not come here.
    Order(Ask),
    /// A configuration that is none.
    Config(String),
    /// The program is too long.
    ProgramLength,
    /// Too much input before the start.
    EarlyInput,
    /// A frame whose payload has a length of its own does not have it.
    Payload(Ask),
    /// No such signal can be sent.
    Signal(u8),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order(ask) => write!(f, "the frame {ask:?} may not come here"),
            Self::Config(why) => write!(f, "the configuration cannot be read: {why}"),
            Self::ProgramLength => write!(f, "the program is longer than {PROGRAM_MAX_BYTES} bytes"),
            Self::EarlyInput => write!(f, "more than {EARLY_STDIN_MAX_BYTES} bytes of input came before the start"),
            Self::Payload(ask) => write!(f, "the payload of the frame {ask:?} has a wrong length"),
            Self::Signal(number) => write!(f, "there is no signal {number}"),
        }
    }
}

/// How far the request has come.
#[derive(Debug, Default)]
pub struct Request {
    config: Option<Config>,
    program_bytes: usize,
    early_bytes: usize,
    started: bool,
    input_ended: bool,
}

impl Request {
    /// Whether the program was asked to start.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Takes the next frame.
    pub fn take(&mut self, ask: Ask, payload: Vec<u8>) -> Result<Order, Fault> {
        self.check_order(ask)?;
        match ask {
            Ask::Config => {
                self.config = Some(Config::parse(&payload)?);
                Ok(Order::Nothing)
            }
            Ask::Program => self.program(payload),
            Ask::Go => self.go(&payload),
            Ask::Stdin => self.input(payload),
            Ask::StdinEnd if payload.is_empty() => {
                self.input_ended = true;
                Ok(Order::EndInput)
            }
            Ask::Signal => match payload[..] {
                [number] => signal(number).map(Order::Signal),
                _ => Err(Fault::Payload(ask)),
            },
            Ask::StdinEnd => Err(Fault::Payload(ask)),
        }
    }

    fn check_order(&self, ask: Ask) -> Result<(), Fault> {
        let fits = match ask {
            Ask::Config => self.config.is_none(),
            Ask::Program | Ask::Go => self.config.is_some() && !self.started,
            Ask::Stdin | Ask::StdinEnd => self.config.is_some() && !self.input_ended,
            Ask::Signal => self.started,
        };
        if fits { Ok(()) } else { Err(Fault::Order(ask)) }
    }

    fn program(&mut self, payload: Vec<u8>) -> Result<Order, Fault> {
        self.program_bytes += payload.len();
        if self.program_bytes > PROGRAM_MAX_BYTES {
            return Err(Fault::ProgramLength);
        }
        Ok(Order::Append(payload))
    }

    fn go(&mut self, payload: &[u8]) -> Result<Order, Fault> {
        if !payload.is_empty() {
            return Err(Fault::Payload(Ask::Go));
        }
        self.started = true;
        Ok(Order::Start(self.config.clone().unwrap_or_default()))
    }

    fn input(&mut self, payload: Vec<u8>) -> Result<Order, Fault> {
        if !self.started {
            self.early_bytes += payload.len();
            if self.early_bytes > EARLY_STDIN_MAX_BYTES {
                return Err(Fault::EarlyInput);
            }
        }
        Ok(Order::Input(payload))
    }
}

fn signal(number: u8) -> Result<Signal, Fault> {
    Signal::from_named_raw(i32::from(number)).ok_or(Fault::Signal(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured() -> Request {
        let mut request = Request::default();
        request.take(Ask::Config, b"{}".to_vec()).expect("an empty configuration");
        request
    }

    #[test]
    fn a_configuration_may_leave_everything_out_and_add_nothing() {
        assert_eq!(Config::parse(b"{}"), Ok(Config::default()));
        let full = Config::parse(br#"{"args":["a"],"env":{"K":"v"},"wallMs":5,"graceMs":2}"#).expect("full");
        assert_eq!((full.args.len(), full.env.len(), full.wall_ms, full.grace_ms), (1, 1, 5, 2));
        for wrong in
            ["", "[1", "{\"more\":1}", "{\"args\":[\"\\u0000\"]}", "{\"env\":{\"A=B\":\"\"}}", "{\"wallMs\":-1}"]
        {
            assert!(matches!(Config::parse(wrong.as_bytes()), Err(Fault::Config(_))), "{wrong}");
        }
    }

    #[test]
    fn nothing_comes_before_the_configuration_and_it_comes_once() {
        for ask in [Ask::Program, Ask::Go, Ask::Stdin, Ask::StdinEnd, Ask::Signal] {
            assert_eq!(Request::default().take(ask, Vec::new()), Err(Fault::Order(ask)));
        }
        assert_eq!(configured().take(Ask::Config, b"{}".to_vec()), Err(Fault::Order(Ask::Config)));
    }

    #[test]
    fn after_the_start_the_program_is_complete() {
        let mut request = configured();
        assert_eq!(request.take(Ask::Signal, vec![9]), Err(Fault::Order(Ask::Signal)));
        assert_eq!(request.take(Ask::Go, Vec::new()), Ok(Order::Start(Config::default())));
        assert_eq!(request.take(Ask::Go, Vec::new()), Err(Fault::Order(Ask::Go)));
        assert_eq!(request.take(Ask::Program, Vec::new()), Err(Fault::Order(Ask::Program)));
        assert_eq!(request.take(Ask::Signal, vec![9]), Ok(Order::Signal(Signal::KILL)));
        assert_eq!(request.take(Ask::Signal, vec![0]), Err(Fault::Signal(0)));
        assert_eq!(request.take(Ask::Signal, vec![9, 9]), Err(Fault::Payload(Ask::Signal)));
    }

    #[test]
    fn input_ends_once_and_is_bounded_before_the_start() {
        let mut request = configured();
        assert_eq!(
            request.take(Ask::Stdin, vec![0; EARLY_STDIN_MAX_BYTES]),
            Ok(Order::Input(vec![0; EARLY_STDIN_MAX_BYTES]))
        );
        assert_eq!(request.take(Ask::Stdin, vec![0]), Err(Fault::EarlyInput));
        let mut request = configured();
        request.take(Ask::Go, Vec::new()).expect("start");
        assert_eq!(request.take(Ask::StdinEnd, Vec::new()), Ok(Order::EndInput));
        assert_eq!(request.take(Ask::StdinEnd, Vec::new()), Err(Fault::Order(Ask::StdinEnd)));
        assert_eq!(request.take(Ask::Stdin, vec![0]), Err(Fault::Order(Ask::Stdin)));
    }

    #[test]
    fn a_program_is_bounded() {
        let mut request = configured();
        for _ in 0..64 {
            request.take(Ask::Program, vec![0; 1 << 20]).expect("within the limit");
        }
        assert_eq!(request.take(Ask::Program, vec![0]), Err(Fault::ProgramLength));
    }
}
