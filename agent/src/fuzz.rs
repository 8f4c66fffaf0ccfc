//! Fuzzing as plain tests: each input of a saved corpus, then changed copies of them. A short run is part of every test run;
//! `FUZZ_SECONDS=600 cargo test -p tart-kubelet --lib fuzz` is a long one. An input that fails is printed as a line for the corpus.

use std::time::{Duration, Instant};

/// Changed copies in a short run.
const ROUNDS: u64 = 2000;
const MAX_LENGTH: usize = 4 << 10;

/// Calls `target` with all inputs. A corpus has one input a line, in hexadecimal digits; `#` begins a comment.
pub(crate) fn run(corpus: &str, target: impl FnMut(&[u8])) {
    let lines = corpus.lines().map(|line| line.split('#').next().unwrap_or_default());
    run_inputs(&lines.filter(|line| !line.trim().is_empty()).map(parse).collect::<Vec<_>>(), target);
}

/// As [`run`], with a corpus of texts, one a line.
pub(crate) fn run_texts(corpus: &str, mut target: impl FnMut(&str)) {
    let inputs: Vec<Vec<u8>> = corpus.lines().map(|line| line.as_bytes().to_vec()).collect();
    run_inputs(&inputs, |bytes| target(&String::from_utf8_lossy(bytes)));
}

fn run_inputs(inputs: &[Vec<u8>], mut target: impl FnMut(&[u8])) {
    assert!(!inputs.is_empty(), "an empty corpus");
    for input in inputs {
        call(input, &mut target);
    }
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let seed = if seconds.is_some() { fastrand::u64(..) } else { 7 };
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut round = 0;
    while end.map_or(round < ROUNDS, |end| Instant::now() < end) {
        round += 1;
        call(&changed(inputs, &mut random), &mut target);
    }
    println!("{round} inputs, seed {seed}");
}

fn parse(line: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        line.chars().filter_map(|digit| digit.to_digit(16)).filter_map(|it| it.try_into().ok()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Prints an input for which the target panics.
fn call(input: &[u8], target: &mut impl FnMut(&[u8])) {
    struct Print<'a>(&'a [u8]);
    impl Drop for Print<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                for byte in self.0 {
                    print!("{byte:02x}");
                }
                println!("  # failed");
            }
        }
    }
    let _print = Print(input);
    target(input);
}

/// Parts of one or two inputs, with some bytes changed, added and removed.
fn changed(inputs: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let pick = |random: &mut fastrand::Rng| inputs[random.usize(..inputs.len())].clone();
    let mut bytes = pick(random);
    if random.bool() {
        bytes.truncate(random.usize(..=bytes.len()));
        let other = pick(random);
        bytes.extend_from_slice(&other[random.usize(..=other.len())..]);
    }
    for _ in 0..random.usize(..8) {
        if bytes.is_empty() {
            break;
        }
        let at = random.usize(..bytes.len());
        match random.u8(..5) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] ^= 1 << random.u8(..8),
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.usize(..5)],
            3 => bytes.insert(at, random.u8(..)),
            _ => drop(bytes.remove(at)),
        }
    }
    bytes.truncate(MAX_LENGTH);
    bytes
}
