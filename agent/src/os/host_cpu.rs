//! The processor time of the whole host.

use std::time::{Duration, Instant};

use sysinfo::System;

/// Adds up how busy the processors were between two looks.
pub(crate) struct HostCpu {
    system: System,
    looked: Instant,
    used: Duration,
}

impl std::fmt::Debug for HostCpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostCpu").field("used", &self.used).finish_non_exhaustive()
    }
}

impl HostCpu {
    /// `None` when the system does not say.
    pub(crate) fn new() -> Option<Self> {
        let mut system = System::new().ok()?;
        system.refresh_cpu_usage();
        Some(Self { system, looked: Instant::now(), used: Duration::ZERO })
    }

    /// The time that all processors have worked since the agent's start.
    pub(crate) fn used(&mut self) -> Duration {
        // A shorter interval cannot be measured.
        if self.looked.elapsed() >= sysinfo::MINIMUM_CPU_UPDATE_INTERVAL {
            self.system.refresh_cpu_usage();
            let cores = f64::from(u32::try_from(self.system.cpus().len()).unwrap_or(1));
            let share = f64::from(self.system.global_cpu_usage()).clamp(0.0, 100.0) / 100.0;
            self.used += self.looked.elapsed().mul_f64(share * cores);
            self.looked = Instant::now();
        }
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_works_while_this_test_does() {
        let mut cpu = HostCpu::new().unwrap();
        let begun = Instant::now();
        let mut used = Duration::ZERO;
        while used.is_zero() && begun.elapsed() < Duration::from_mins(1) {
            used = cpu.used();
        }
        let cores = u32::try_from(cpu.system.cpus().len()).unwrap();
        assert!(!used.is_zero() && used <= begun.elapsed() * cores, "{used:?} of {cores} cores");
    }
}
