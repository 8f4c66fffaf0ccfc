//! The guest agent's messages, by field number.

use crate::state::GuestCommand;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExecRequest {
    #[prost(oneof = "exec_request::Type", tags = "1")]
    pub(super) r#type: Option<exec_request::Type>,
}

pub(super) mod exec_request {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(in super::super) enum Type {
        #[prost(message, tag = "1")]
        Command(super::Command),
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Command {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "2")]
    args: Vec<String>,
    #[prost(map = "string, string", tag = "7")]
    env: std::collections::HashMap<String, String>,
    #[prost(string, tag = "8")]
    workdir: String,
}

impl Command {
    /// The command for the wire. Guest agents before 0.10 ignore `env` and `workdir` without a word, so the
    /// command line carries both as well.
    pub(super) fn wrap(command: &GuestCommand) -> Self {
        let mut argv: Vec<String> = Vec::new();
        if let Some(dir) = &command.working_dir {
            let script = "cd \"$1\" && shift && exec \"$@\"";
            argv.extend(["/bin/sh".into(), "-c".into(), script.into(), "sh".into(), dir.clone()]);
        }
        if !command.env.is_empty() {
            argv.push("/usr/bin/env".into());
            argv.extend(command.env.iter().map(|(name, value)| format!("{name}={value}")));
        }
        argv.extend(command.argv.iter().cloned());
        let mut argv = argv.into_iter();
        Self {
            name: argv.next().unwrap_or_default(),
            args: argv.collect(),
            env: command.env.iter().cloned().collect(),
            workdir: command.working_dir.clone().unwrap_or_default(),
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExecResponse {
    #[prost(oneof = "exec_response::Type", tags = "1, 2, 3")]
    pub(super) r#type: Option<exec_response::Type>,
}

pub(super) mod exec_response {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(in super::super) enum Type {
        #[prost(message, tag = "1")]
        Exit(super::Exit),
        #[prost(message, tag = "2")]
        StandardOutput(super::IoChunk),
        #[prost(message, tag = "3")]
        StandardError(super::IoChunk),
    }
}

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

    fn command(env: &[(&str, &str)], working_dir: Option<&str>) -> GuestCommand {
        GuestCommand {
            argv: vec!["make".into(), "test".into()],
            env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            working_dir: working_dir.map(str::to_owned),
        }
    }

    #[test]
    fn a_plain_command_is_sent_as_it_is() {
        let sent = Command::wrap(&command(&[], None));
        assert_eq!((sent.name.as_str(), sent.args.as_slice()), ("make", ["test".to_owned()].as_slice()));
    }

    #[test]
    fn env_and_working_dir_also_reach_an_old_guest_agent() {
        let sent = Command::wrap(&command(&[("A", "b c")], Some("/tmp")));
        assert_eq!(sent.name, "/bin/sh");
        assert_eq!(sent.args[3..], ["/tmp", "/usr/bin/env", "A=b c", "make", "test"]);
        assert_eq!(sent.workdir, "/tmp");
    }

    #[test]
    fn the_wire_is_the_contract_of_the_guest_agent() {
        let exit = ExecResponse::decode([0x0a, 0x02, 0x08, 0x07].as_slice()).unwrap();
        assert_eq!(exit.r#type, Some(exec_response::Type::Exit(Exit { code: 7 })));
        let out = ExecResponse::decode([0x12, 0x03, 0x0a, 0x01, b'x'].as_slice()).unwrap();
        assert_eq!(out.r#type, Some(exec_response::Type::StandardOutput(IoChunk { data: vec![b'x'] })));
        let request = ExecRequest {
            r#type: Some(exec_request::Type::Command(Command { name: "a".into(), ..Command::default() })),
        };
        assert_eq!(request.encode_to_vec(), [0x0a, 0x03, 0x0a, 0x01, b'a']);
    }
}
