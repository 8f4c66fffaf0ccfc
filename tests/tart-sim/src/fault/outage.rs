//! The parameter of [`Fault::Pull`](super::Fault::Pull): what goes wrong with requests to registries, and when.

use std::time::Duration;

use super::duration;

/// The part of a pull that an outage hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The request for the manifest.
    Manifest,
    /// The requests for the layers.
    Layers,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutageKind {
    /// Nothing more arrives until the outage is gone.
    Stall,
    /// The request times out.
    Timeout,
    /// The connection is lost.
    ConnectionLost,
    /// The Mac has no network.
    Offline,
    /// The registry's name cannot be resolved.
    Dns,
    /// The registry refuses the connection.
    Refused,
    /// The token endpoint answers with this status.
    Token(u16),
    /// The registry answers with this status.
    Status(u16),
}

/// One line: `KIND [at=manifest|layers] [times=N] [after=DURATION] [only=PREFIX]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// What goes wrong.
    pub kind: OutageKind,
    /// The part of the pull that is hit.
    pub stage: Stage,
    /// Only the first attempts of each command are hit.
    pub times: Option<u32>,
    /// How long the failure takes.
    pub after: Duration,
    /// Only images whose name begins so are hit.
    pub only: String,
}

impl Outage {
    /// Reads one outage a line, at least one; `None` if a line is no outage.
    pub fn parse_lines(text: &str) -> Option<Vec<Self>> {
        let outages: Vec<_> = text.lines().map(Self::parse).collect::<Option<_>>()?;
        (!outages.is_empty()).then_some(outages)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let kind = match words.next()? {
            "stall" => OutageKind::Stall,
            "timeout" => OutageKind::Timeout,
            "connection-lost" => OutageKind::ConnectionLost,
            "offline" => OutageKind::Offline,
            "dns" => OutageKind::Dns,
            "refused" => OutageKind::Refused,
            "403" => OutageKind::Token(403),
            "401-token" => OutageKind::Token(401),
            status => OutageKind::Status(status.parse().ok()?),
        };
        let (after, only) = (Duration::ZERO, String::new());
        let mut outage = Self { kind, stage: Stage::Manifest, times: None, after, only };
        for option in words {
            match option.split_once('=')? {
                ("at", "layers") => outage.stage = Stage::Layers,
                ("at", "manifest") => outage.stage = Stage::Manifest,
                ("times", count) => outage.times = Some(count.parse().ok()?),
                ("after", length) => outage.after = duration(length)?,
                ("only", prefix) => outage.only = prefix.into(),
                _ => return None,
            }
        }
        Some(outage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_has_a_kind_a_stage_a_time_and_images() {
        let expected = Outage {
            kind: OutageKind::ConnectionLost,
            stage: Stage::Layers,
            times: Some(2),
            after: Duration::from_millis(10),
            only: "registry.example/team".into(),
        };
        assert_eq!(
            Outage::parse("connection-lost at=layers times=2 after=10ms only=registry.example/team"),
            Some(expected)
        );
        assert_eq!(Outage::parse("503").unwrap().kind, OutageKind::Status(503));
        for nonsense in ["", "sideways", "404 at=night", "404 loudly"] {
            assert_eq!(Outage::parse(nonsense), None, "{nonsense:?}");
            assert_eq!(Outage::parse_lines(nonsense), None, "{nonsense:?}");
        }
    }
}
