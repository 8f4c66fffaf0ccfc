//! The guest agent's gRPC contract: service `Agent`, proto3, no package.
//!
//! Written by hand instead of generated: two calls and a handful of messages are not worth a protobuf compiler.

pub(crate) mod client;
pub(crate) mod server;

use std::collections::HashMap;

/// The path of the bidirectional stream that runs a command.
const EXEC_PATH: &str = "/Agent/Exec";

/// The path of the call that asks for the guest's address.
const RESOLVE_IP_PATH: &str = "/Agent/ResolveIP";

/// One message of the client's side of `Exec`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExecRequest {
    #[prost(oneof = "Input", tags = "1, 2, 3")]
    pub(crate) input: Option<Input>,
}

/// What a client says during `Exec`: the command first, then any of the others.
#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(clippy::enum_variant_names, reason = "the contract's own names")]
pub(crate) enum Input {
    #[prost(message, tag = "1")]
    Command(Command),
    #[prost(message, tag = "2")]
    StandardInput(IoChunk),
    #[prost(message, tag = "3")]
    TerminalResize(TerminalSize),
}

/// The command to run.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Command {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) args: Vec<String>,
    #[prost(bool, tag = "3")]
    pub(crate) interactive: bool,
    #[prost(bool, tag = "4")]
    pub(crate) tty: bool,
    #[prost(message, optional, tag = "5")]
    pub(crate) terminal_size: Option<TerminalSize>,
    #[prost(bool, tag = "6")]
    pub(crate) detach: bool,
    #[prost(map = "string, string", tag = "7")]
    pub(crate) env: HashMap<String, String>,
    #[prost(string, tag = "8")]
    pub(crate) workdir: String,
}

/// One message of the guest's side of `Exec`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExecResponse {
    #[prost(oneof = "Output", tags = "1, 2, 3, 4")]
    pub(crate) output: Option<Output>,
}

/// What the guest says during `Exec`: output, then the exit code.
#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(clippy::enum_variant_names, reason = "the contract's own names")]
pub(crate) enum Output {
    #[prost(message, tag = "1")]
    Exit(Exit),
    #[prost(message, tag = "2")]
    StandardOutput(IoChunk),
    #[prost(message, tag = "3")]
    StandardError(IoChunk),
    #[prost(message, tag = "4")]
    Started(Started),
}

/// The command runs; only newer agents say so.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Started {}

/// How the command ended; a signal is code -1.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Exit {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

/// A piece of a standard stream; an empty one ends standard input.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct IoChunk {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) data: Vec<u8>,
}

/// The size of the client's terminal, in characters.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct TerminalSize {
    #[prost(uint32, tag = "1")]
    pub(crate) rows: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) cols: u32,
}

/// The question for the guest's address.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct ResolveIpRequest {}

/// The guest's address.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResolveIpResponse {
    #[prost(string, tag = "1")]
    pub(crate) ip: String,
}

impl From<Input> for ExecRequest {
    fn from(input: Input) -> Self {
        Self { input: Some(input) }
    }
}

impl From<Output> for ExecResponse {
    fn from(output: Output) -> Self {
        Self { output: Some(output) }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn messages_have_the_field_numbers_of_the_contract() {
        let command =
            Command { name: "true".into(), interactive: true, workdir: "/".into(), ..Command::default() };
        let request = ExecRequest::from(Input::Command(command));
        assert_eq!(request.encode_to_vec(), b"\x0a\x0b\x0a\x04true\x18\x01\x42\x01/");

        let size = ExecRequest::from(Input::TerminalResize(TerminalSize { rows: 2, cols: 3 }));
        assert_eq!(size.encode_to_vec(), b"\x1a\x04\x08\x02\x10\x03");

        let exit = ExecResponse::from(Output::Exit(Exit { code: 7 }));
        assert_eq!(exit.encode_to_vec(), b"\x0a\x02\x08\x07");

        let started = ExecResponse::from(Output::Started(Started {}));
        assert_eq!(started.encode_to_vec(), b"\x22\x00");

        let output = ExecResponse::from(Output::StandardError(IoChunk { data: b"x".to_vec() }));
        assert_eq!(output.encode_to_vec(), b"\x1a\x03\x0a\x01x");
    }
}
