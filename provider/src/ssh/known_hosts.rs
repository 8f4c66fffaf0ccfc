//! What a file of known hosts says, beyond the keys that it has for a name.

use russh::Preferred;
use russh::keys::{Algorithm, PublicKey};

/// The algorithms to ask a host's key for: first those of the keys that are known, as `ssh` does it. Else a host could show another one of
/// its keys, and be taken for another host.
pub(super) fn preferred_algorithms(known: &[PublicKey]) -> Vec<Algorithm> {
    let is_known = |algorithm: &Algorithm| {
        known.iter().any(|key| match (key.algorithm(), algorithm) {
            // A key of RSA signs by any of its hashes.
            (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
            (of_key, algorithm) => of_key == *algorithm,
        })
    };
    let mut algorithms = Preferred::DEFAULT.key.to_vec();
    algorithms.sort_by_key(|algorithm| !is_known(algorithm));
    algorithms
}

/// A line that may be about this host and that only `ssh` understands: one with a marker, or with a pattern that fits.
pub(super) fn undecided_line<'a>(text: &'a str, host: &str) -> Option<&'a str> {
    text.lines().map(str::trim).filter(|line| !line.starts_with('#')).find(|line| {
        let (marker, rest) = match line.split_once(char::is_whitespace) {
            Some((marker, rest)) if marker.starts_with('@') => (true, rest.trim_start()),
            _ => (false, *line),
        };
        let names = rest.split_whitespace().next().unwrap_or_default();
        names.split(',').any(|name| {
            let name = name.strip_prefix('!').unwrap_or(name);
            let is_pattern = name.contains(['*', '?']);
            // The name of a hashed line cannot be read.
            (marker && (name.starts_with('|') || name == host)) || (is_pattern && fits(name, host))
        })
    })
}

/// Whether a name fits a pattern with `*` and `?`. The port in `[host]:port` is left aside.
fn fits(pattern: &str, host: &str) -> bool {
    let pattern = pattern.strip_prefix('[').and_then(|rest| rest.split(']').next()).unwrap_or(pattern);
    let (pattern, host): (Vec<char>, Vec<char>) = (pattern.chars().collect(), host.chars().collect());
    // Which beginnings of the host fit the beginning of the pattern that has been read.
    let mut fit = vec![false; host.len() + 1];
    fit[0] = true;
    for part in pattern {
        let before = fit.clone();
        for at in 0..=host.len() {
            fit[at] = match part {
                '*' => before[..=at].contains(&true),
                '?' => at > 0 && before[at - 1],
                letter => at > 0 && before[at - 1] && host[at - 1].eq_ignore_ascii_case(&letter),
            };
        }
    }
    fit[host.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_of_known_keys_come_first() {
        assert_eq!(preferred_algorithms(&[]), Preferred::DEFAULT.key.to_vec());
        let ecdsa = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBHNXsQEz1ONHXn50PqMoGFef4IefLbcnDch8AqnebVbfSXYS1vQaxyz/YTppbRUWOzA8tSWRHMugS8Xb+amoPIM= mac";
        let known = PublicKey::from_openssh(ecdsa).unwrap();
        let first = preferred_algorithms(std::slice::from_ref(&known));
        assert_eq!(first[0], known.algorithm());
        assert_eq!(first.len(), Preferred::DEFAULT.key.len());
    }

    #[test]
    fn a_line_that_may_be_about_the_host_is_not_passed_over() {
        let undecided = |line: &str| {
            undecided_line(&format!("# mac-* is a comment\nother ssh-ed25519 A\n{line}\n"), "mac-1").is_some()
        };
        for line in [
            "@revoked mac-1 ssh-ed25519 A",
            "@revoked |1|salt|hash ssh-ed25519 A",
            "@cert-authority *.example,mac-? ssh-ed25519 A",
            "mac-* ssh-ed25519 A",
            "[MAC-?]:2222 ssh-ed25519 A",
            "*,!mac-1 ssh-ed25519 A",
        ] {
            assert!(undecided(line), "{line}");
        }
        for line in [
            "mac-1 ssh-ed25519 A",
            "@revoked mac-2 ssh-ed25519 A",
            "mac-1? ssh-ed25519 A",
            "*.example ssh-ed25519 A",
            "",
        ] {
            assert!(!undecided(line), "{line}");
        }
    }
}
