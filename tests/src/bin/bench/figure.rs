//! Figures, their budgets, and the report of both.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

const FILE: &str = "bench.json";

/// Something that is promised.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Figure {
    /// A name to ask for it by.
    name: &'static str,
    /// What is measured.
    what: &'static str,
    unit: &'static str,
    /// The value may not be above this.
    budget: f64,
}

impl Figure {
    const ALL: [Self; 28] = [
        Self::BINARY_SIZE,
        Self::RSS_AT_REST,
        Self::TRAFFIC_AT_REST,
        Self::CPU_AT_REST,
        Self::RESTART_TO_BEAT,
        Self::BOUND_TO_RUN,
        Self::TART_BEFORE_RUN,
        Self::ADDRESS_TO_RUNNING,
        Self::EXIT_TO_TERMINAL,
        Self::COMMAND_TO_TERMINAL,
        Self::PSS_WITH_TWO_VMS,
        Self::RESTART_TO_ADOPTED,
        Self::RSS_WITH_50_STREAMS,
        Self::EXEC_ROUND_TRIP,
        Self::LOG_COPY,
        Self::RSS_WITH_LOG,
        Self::PORT_FORWARD_COPY,
        Self::PORT_FORWARD_SPOILT,
        Self::RESTART_TO_EXEC,
        Self::IMAGE_CHECK,
        Self::WARM_START_READ,
        Self::ROLLOUT_PEAK,
        Self::ROLLOUT_GROWTH,
        Self::MACHINES_STEADY,
        Self::MACHINES_MEMORY,
        Self::MACHINES_GROWTH,
        Self::MACHINES_CPU,
        Self::MACHINES_CALLS,
    ];
    /// What needs a fleet of machines of Cluster API.
    pub(crate) const OF_MACHINES: [Self; 5] = [
        Self::MACHINES_STEADY,
        Self::MACHINES_MEMORY,
        Self::MACHINES_GROWTH,
        Self::MACHINES_CPU,
        Self::MACHINES_CALLS,
    ];
    pub(crate) const BINARY_SIZE: Self =
        Self { name: "binary-size", what: "agent binary, stripped", unit: "MB", budget: 12.0 };
    pub(crate) const RSS_AT_REST: Self = Self {
        name: "rss-at-rest",
        what: "agent's resident memory, no Pods, 300 other processes",
        unit: "MB",
        budget: 14.0,
    };
    pub(crate) const TRAFFIC_AT_REST: Self = Self {
        name: "traffic-at-rest",
        what: "bytes to and from the API server, no Pods, TLS included",
        unit: "MB/h",
        budget: 0.6,
    };
    pub(crate) const CPU_AT_REST: Self =
        Self { name: "cpu-at-rest", what: "share of one core, no Pods", unit: "%", budget: 0.1 };
    pub(crate) const RESTART_TO_BEAT: Self = Self {
        name: "restart-to-beat",
        what: "start of a killed agent -> Lease renewed",
        unit: "ms",
        budget: 2000.0,
    };
    pub(crate) const BOUND_TO_RUN: Self = Self {
        name: "bound-to-run",
        what: "Pod bound -> `tart run`, warm image, 20 ms a tart call",
        unit: "ms",
        budget: 80.0,
    };
    pub(crate) const TART_BEFORE_RUN: Self = Self {
        name: "tart-before-run",
        what: "tart processes before `tart run`, warm image",
        unit: "",
        budget: 2.0,
    };
    pub(crate) const ADDRESS_TO_RUNNING: Self = Self {
        name: "address-to-running",
        what: "guest has an address -> Pod Running in the API",
        unit: "ms",
        budget: 300.0,
    };
    pub(crate) const EXIT_TO_TERMINAL: Self = Self {
        name: "exit-to-terminal",
        what: "VM exit -> Pod terminal in the API",
        unit: "ms",
        budget: 300.0,
    };
    pub(crate) const COMMAND_TO_TERMINAL: Self = Self {
        name: "command-to-terminal",
        what: "command's exit, with 0 or by SIGTERM -> Pod terminal in the API",
        unit: "ms",
        budget: 300.0,
    };
    pub(crate) const PSS_WITH_TWO_VMS: Self =
        Self { name: "pss-with-two-vms", what: "agent and two shims together", unit: "MB", budget: 20.0 };
    pub(crate) const RESTART_TO_ADOPTED: Self = Self {
        name: "restart-to-adopted",
        what: "start of a killed agent -> true status of its two VMs in the API",
        unit: "ms",
        budget: 2000.0,
    };
    pub(crate) const RSS_WITH_50_STREAMS: Self = Self {
        name: "rss-with-streams",
        what: "agent's resident memory, 25 `logs -f` and 25 `exec` open",
        unit: "MB",
        budget: 32.0,
    };
    pub(crate) const EXEC_ROUND_TRIP: Self = Self {
        name: "exec-round-trip",
        what: "`exec` from the client's first byte to its exit code, less the guest's own time",
        unit: "ms",
        budget: 20.0,
    };
    pub(crate) const LOG_COPY: Self = Self {
        name: "log-copy",
        what: "log of 1 GB to a client, in times that a plain TCP connection takes",
        unit: "",
        budget: 2.0,
    };
    pub(crate) const RSS_WITH_LOG: Self = Self {
        name: "rss-with-log",
        what: "agent's highest resident memory while it sends logs of 1 GB",
        unit: "MB",
        budget: 32.0,
    };
    pub(crate) const PORT_FORWARD_COPY: Self = Self {
        name: "port-forward-copy",
        what: "1 GB through one forwarded connection, in times that a plain TCP connection takes",
        unit: "",
        budget: 2.0,
    };
    pub(crate) const PORT_FORWARD_SPOILT: Self = Self {
        name: "port-forward-bulk",
        what: "gigabytes spoilt of two: one through `kubectl port-forward` by WebSockets, one by SPDY",
        unit: "GB",
        budget: 0.0,
    };
    pub(crate) const RESTART_TO_EXEC: Self = Self {
        name: "restart-to-exec",
        what: "start of a killed agent -> it has run a command for a client",
        unit: "ms",
        budget: 2000.0,
    };
    pub(crate) const IMAGE_CHECK: Self = Self {
        name: "image-check",
        what: "check of an image's content, in times that one core takes to hash its disk",
        unit: "",
        budget: 1.5,
    };
    pub(crate) const WARM_START_READ: Self = Self {
        name: "warm-start-read",
        what: "read by the agent from bind to `tart run` of a checked image with a disk of 268 MB",
        unit: "MB",
        budget: 5.0,
    };
    /// The Go design had 96 MB, and 47 MB more for each of the four rolls.
    pub(crate) const ROLLOUT_PEAK: Self = Self {
        name: "rollout-peak",
        what: "provider's peak memory, 40 Macs, four at a time, 50 MB each (Go design: 96 + 4 x 47 MB)",
        unit: "MB",
        budget: 48.0,
    };
    pub(crate) const ROLLOUT_GROWTH: Self = Self {
        name: "rollout-growth",
        what: "what 40 Macs cost the provider more than 10",
        unit: "MB",
        budget: 3.0,
    };
    pub(crate) const MACHINES_STEADY: Self = Self {
        name: "machines-steady",
        what: "start of the provider -> all of 1,000 machines are reported up to date",
        unit: "s",
        budget: 60.0,
    };
    pub(crate) const MACHINES_MEMORY: Self = Self {
        name: "machines-memory",
        what: "provider's resident memory, 1,000 machines at rest",
        unit: "MB",
        budget: 100.0,
    };
    pub(crate) const MACHINES_GROWTH: Self = Self {
        name: "machines-growth",
        what: "what 1,000 machines cost the provider more than 100",
        unit: "MB",
        budget: 60.0,
    };
    pub(crate) const MACHINES_CPU: Self = Self {
        name: "machines-cpu",
        what: "provider's share of one core, 1,000 machines at rest",
        unit: "%",
        budget: 2.0,
    };
    pub(crate) const MACHINES_CALLS: Self = Self {
        name: "machines-calls",
        what: "calls of the API server by all its clients, for each of 1,000 machines and minute at rest",
        unit: "",
        budget: 1.0,
    };
}

#[derive(Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    figure: Figure,
    /// Absent where the machine cannot tell.
    value: Option<f64>,
    holds: Option<bool>,
}

/// The figures that were measured so far.
#[derive(Debug)]
pub(crate) struct Report {
    only: Option<String>,
    measured: Vec<Measured>,
}

impl Report {
    /// A report of all figures, or of those whose names begin as is asked for.
    pub(crate) fn new(only: Option<&str>) -> Result<Self> {
        let names = Figure::ALL.map(|figure| figure.name);
        if let Some(only) = only {
            let is_there = names.iter().any(|name| name.starts_with(only));
            ensure!(is_there, "there is no figure `{only}`, but {}", names.join(", "));
        }
        Ok(Self { only: only.map(str::to_owned), measured: Vec::new() })
    }

    /// Whether one of some figures is asked for.
    pub(crate) fn wants(&self, figures: &[Figure]) -> bool {
        self.only.as_deref().is_none_or(|only| figures.iter().any(|figure| figure.name.starts_with(only)))
    }

    /// Whether only one of some figures is asked for.
    pub(crate) fn is_only(&self, figures: &[Figure]) -> bool {
        self.only.is_some() && self.wants(figures)
    }

    /// Measures a figure, unless another one was asked for, and prints its line.
    pub(crate) async fn add(
        &mut self,
        figure: Figure,
        measure: impl AsyncFnOnce() -> Result<f64>,
    ) -> Result<()> {
        if !self.wants(&[figure]) {
            return Ok(());
        }
        let value = measure().await.with_context(|| format!("cannot measure {}", figure.name))?;
        let holds = value <= figure.budget;
        let verdict = if holds { "holds" } else { "BROKEN" };
        let Figure { name, what, unit, budget } = figure;
        let mut stdout = std::io::stdout().lock();
        writeln!(
            stdout,
            "{name:<19} {value:>9.2} {unit:<4} budget {budget:>7.1} {unit:<4} {verdict:<6}  {what}"
        )?;
        self.measured.push(Measured { figure, value: Some(value), holds: Some(holds) });
        Ok(())
    }

    /// Says why a figure is not measured, unless another one was asked for.
    pub(crate) fn leave_out(&mut self, figure: Figure, why: &str) -> Result<()> {
        if self.wants(&[figure]) {
            writeln!(std::io::stdout().lock(), "{:<19} not measured: {why}", figure.name)?;
            self.measured.push(Measured { figure, value: None, holds: None });
        }
        Ok(())
    }

    /// Writes the file, and says whether every budget holds.
    pub(crate) fn finish(self) -> Result<bool> {
        let json = serde_json::to_string_pretty(&self.measured)?;
        std::fs::write(FILE, json + "\n").with_context(|| format!("cannot write {FILE}"))?;
        Ok(self.measured.iter().all(|measured| measured.holds != Some(false)))
    }
}

/// The middle of some values: one slow run on a shared machine does not move it.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
