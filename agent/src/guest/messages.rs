//! The guest agent's messages, by field number.

use super::Exec;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExecRequest {
    #[prost(oneof = "exec_request::Type", tags = "1, 2, 3")]
    pub(super) r#type: Option<exec_request::Type>,
}

pub(super) mod exec_request {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(in crate::guest) enum Type {
        #[prost(message, tag = "1")]
        Command(super::CommandMessage),
        #[prost(message, tag = "2")]
        StandardInput(super::IoChunk),
        #[prost(message, tag = "3")]
        TerminalResize(super::TerminalSize),
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CommandMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "2")]
    args: Vec<String>,
    #[prost(bool, tag = "3")]
    interactive: bool,
    #[prost(bool, tag = "4")]
    tty: bool,
    #[prost(message, optional, tag = "5")]
    terminal_size: Option<TerminalSize>,
    #[prost(map = "string, string", tag = "7")]
    env: std::collections::HashMap<String, String>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct TerminalSize {
    #[prost(uint32, tag = "1")]
    pub(super) rows: u32,
    #[prost(uint32, tag = "2")]
    pub(super) cols: u32,
}

impl CommandMessage {
    pub(super) fn new(exec: Exec, interactive: bool) -> Self {
        let mut argv = exec.argv.into_iter();
        Self {
            name: argv.next().unwrap_or_default(),
            args: argv.collect(),
            interactive,
            tty: exec.tty,
            terminal_size: exec.tty.then_some(TerminalSize { rows: 24, cols: 80 }),
            env: exec.env.into_iter().collect(),
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExecResponse {
    #[prost(oneof = "exec_response::Type", tags = "1, 2, 3, 4")]
    pub(super) r#type: Option<exec_response::Type>,
}

pub(super) mod exec_response {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(in crate::guest) enum Type {
        #[prost(message, tag = "1")]
        Exit(super::Exit),
        #[prost(message, tag = "2")]
        StandardOutput(super::IoChunk),
        #[prost(message, tag = "3")]
        StandardError(super::IoChunk),
        /// Only newer guest agents send it.
        #[prost(message, tag = "4")]
        Started(super::Started),
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Started {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Exit {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct IoChunk {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResolveIpRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResolveIpResponse {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn a_command_message_has_the_program_its_arguments_and_a_terminal() {
        let exec = Exec { argv: vec!["make".into(), "test".into()], tty: true, ..Exec::default() };
        let sent = CommandMessage::new(exec, true);
        assert_eq!((sent.name.as_str(), sent.args.as_slice()), ("make", ["test".to_owned()].as_slice()));
        assert!(sent.tty && sent.interactive && sent.terminal_size.is_some());
    }

    #[test]
    fn messages_have_the_guest_agents_field_numbers() {
        let exit = ExecResponse::decode([0x0a, 0x02, 0x08, 0x07].as_slice()).unwrap();
        assert_eq!(exit.r#type, Some(exec_response::Type::Exit(Exit { code: 7 })));
        let out = ExecResponse::decode([0x12, 0x03, 0x0a, 0x01, b'x'].as_slice()).unwrap();
        assert_eq!(out.r#type, Some(exec_response::Type::StandardOutput(IoChunk { data: vec![b'x'] })));
        let started = ExecResponse::decode([0x22, 0x00].as_slice()).unwrap();
        assert_eq!(started.r#type, Some(exec_response::Type::Started(Started {})));
        let newer = ExecResponse::decode([0x2a, 0x02, 0x08, 0x07].as_slice()).unwrap();
        assert_eq!(newer.r#type, None);
        let request = ExecRequest {
            r#type: Some(exec_request::Type::Command(CommandMessage {
                name: "a".into(),
                ..CommandMessage::default()
            })),
        };
        assert_eq!(request.encode_to_vec(), [0x0a, 0x03, 0x0a, 0x01, b'a']);
        let input = exec_request::Type::StandardInput(IoChunk { data: vec![b'x'] });
        assert_eq!(ExecRequest { r#type: Some(input) }.encode_to_vec(), [0x12, 0x03, 0x0a, 0x01, b'x']);
        let resize = exec_request::Type::TerminalResize(TerminalSize { rows: 2, cols: 3 });
        assert_eq!(ExecRequest { r#type: Some(resize) }.encode_to_vec(), [0x1a, 0x04, 0x08, 2, 0x10, 3]);
        let tty = CommandMessage { interactive: true, tty: true, ..CommandMessage::default() };
        assert_eq!(tty.encode_to_vec(), [0x18, 0x01, 0x20, 0x01]);
    }
}
