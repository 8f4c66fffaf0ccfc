//! Worlds in which Pods come and go, processes die, clocks jump and images mean harm, and what must hold in all of them.
//!
//! Each world is a simulated Mac with the shipped agent; all share one real control plane. A step does one thing to one world. What
//! happens in a step follows from the seed, the world and the step, so that a run can be repeated, though not its timing.

mod action;
mod api_call;
mod evidence;
mod oracle;
mod pod_kind;
mod pod_watch;
mod world;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use tart_kubelet_tests::control_plane::ControlPlane;
use tart_kubelet_tests::sandbox::Sandbox;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use action::Action;
use world::{Tally, World};

/// After so many steps a world has to come to rest.
const STEPS_TO_REST: usize = 40;
const PROGRESS: Duration = Duration::from_secs(30);

/// What a run consists of.
#[derive(Debug, Clone, Copy)]
struct Plan {
    seed: u64,
    steps: usize,
    worlds: usize,
    /// Whether the worlds do not note whose processes they kill: a run that does not end with a violation is blind.
    is_blind: bool,
}

fn main() -> ExitCode {
    let outcome = Plan::read(std::env::args().skip(1)).and_then(|plan| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start")?;
        LocalSet::new().block_on(&runtime, soak(plan))
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Plan {
    /// Reads `--seed N --steps N --worlds N --blind`, each of which may be absent.
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut plan = Self { seed: fastrand::u64(..1_000_000), steps: 10_000, worlds: 5, is_blind: false };
        while let Some(word) = words.next() {
            if word == "--blind" {
                plan.is_blind = true;
                continue;
            }
            let number = words.next().and_then(|number| number.parse().ok());
            let number = || number.with_context(|| format!("{word} needs a number"));
            match word.as_str() {
                "--seed" => plan.seed = number()?,
                "--steps" => plan.steps = usize::try_from(number()?)?,
                "--worlds" => plan.worlds = usize::try_from(number()?)?.max(1),
                other => bail!("unknown word {other}: --seed, --steps, --worlds and --blind are known"),
            }
        }
        Ok(plan)
    }

    /// The numbers that a step of a world is made from.
    fn random(self, world: usize, step: usize) -> Rng {
        let mix = |value: usize, factor: u64| (value as u64).wrapping_add(1).wrapping_mul(factor);
        Rng::with_seed(self.seed ^ mix(world, 0x9E37_79B9_7F4A_7C15) ^ mix(step, 0xD1B5_4A32_D192_ED03))
    }
}

async fn soak(plan: Plan) -> Result<()> {
    let Plan { seed, steps, worlds, .. } = plan;
    say(&format!(
        "seed {seed}, {steps} steps in {worlds} worlds; `make soak SEED={seed} STEPS={steps}` repeats it"
    ));
    let sandbox = Sandbox::new()?;
    let control_plane = Arc::new(ControlPlane::builder().start(&sandbox).await?);
    let (done, begun) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let mut tasks = JoinSet::new();
    for index in 0..worlds {
        let (control_plane, done) = (control_plane.clone(), done.clone());
        let share = steps / worlds + usize::from(index < steps % worlds);
        tasks.spawn_local(async move { Box::pin(live(&control_plane, plan, index, share, &done)).await });
    }
    let mut total = Tally::default();
    loop {
        let ended = tokio::select! {
            ended = tasks.join_next() => ended,
            () = sleep(PROGRESS) => {
                say(&format!("{} of {steps} steps after {} s", done.load(Ordering::Relaxed), begun.elapsed().as_secs()));
                continue;
            }
        };
        let Some(tally) = ended else { break };
        let Tally { pods, innocent_ends, vm_runs, rests } = tally.context("a world has panicked")??;
        total.pods += pods;
        total.innocent_ends += innocent_ends;
        total.vm_runs += vm_runs;
        total.rests += rests;
    }
    let Tally { pods, innocent_ends, vm_runs, rests } = total;
    say(&format!(
        "seed {seed}: {} steps in {} s, {pods} Pods, {vm_runs} VM runs, {innocent_ends} ends of innocent Pods judged, {rests} rests; every invariant held",
        done.load(Ordering::Relaxed),
        begun.elapsed().as_secs()
    ));
    Ok(())
}

/// Lives through a world's steps; the error says where it is kept what was seen.
async fn live(
    control_plane: &ControlPlane,
    plan: Plan,
    index: usize,
    steps: usize,
    done: &AtomicUsize,
) -> Result<Tally> {
    let mut world = Box::pin(World::new(control_plane, index, plan.is_blind)).await?;
    for step in 0..steps {
        let mut random = plan.random(index, step);
        let action = Action::random(&mut random);
        let outcome = async {
            Box::pin(world.act(action, &mut random)).await?;
            Box::pin(world.check()).await?;
            if step % STEPS_TO_REST == STEPS_TO_REST - 1 || step + 1 == steps {
                Box::pin(world.rest()).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        if let Err(error) = Box::pin(outcome).await {
            let directory = kept(plan.seed, index);
            let place = match world.keep_evidence(&directory) {
                Ok(()) => format!("what was seen is in {}", directory.display()),
                Err(error) => format!("what was seen could not be kept: {error:#}"),
            };
            let seed = plan.seed;
            return Err(
                error.context(format!("seed {seed}, world {index}, step {step} ({action:?}); {place}"))
            );
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(world.tally)
}

fn kept(seed: u64, world: usize) -> PathBuf {
    std::env::temp_dir().join(format!("tart-kubelet-soak-{seed}-{world}"))
}

fn say(line: &str) {
    // The terminal may be gone.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
