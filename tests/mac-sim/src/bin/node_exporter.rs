//! A simulated `node_exporter`: it has the flags of the real one, and one metric.

use std::io::{self, Read as _, Write as _};
use std::net::TcpListener;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--version") {
        println!("node_exporter, version 1.9.1 (simulated)");
        return ExitCode::SUCCESS;
    }
    let is_known =
        |word: &String| word.starts_with("--web.listen-address=") || word.starts_with("--collector.");
    if let Some(unknown) = words.iter().find(|word| !is_known(word)) {
        eprintln!("node_exporter: error: unknown long flag '{unknown}', try --help");
        return ExitCode::FAILURE;
    }
    let address = words.iter().find_map(|word| word.strip_prefix("--web.listen-address="));
    match serve(address.unwrap_or(":9100")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("node_exporter: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers every request with the metric.
fn serve(address: &str) -> io::Result<()> {
    for client in TcpListener::bind(address)?.incoming() {
        let mut client = client?;
        // A client that goes away is no reason to end.
        let _ = client.read(&mut [0; 4096]);
        let _ = client.write_all(b"HTTP/1.0 200 OK\r\n\r\nnode_exporter_build_info{version=\"1.9.1\"} 1\n");
    }
    Ok(())
}
