//! A real Prometheus, from Debian's package.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::process::Process;
use crate::programs;
use crate::sandbox::Sandbox;

const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

/// A Prometheus that is to be started.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    jobs: Vec<Value>,
    rules: Vec<PathBuf>,
    interval: Option<Duration>,
}

impl Builder {
    /// Evaluates a file of rules.
    #[must_use]
    pub fn rules(mut self, file: &Path) -> Self {
        self.rules.push(file.to_owned());
        self
    }

    /// Scrapes that often; each second otherwise.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Scrapes these addresses.
    #[must_use]
    pub fn targets(mut self, job: &str, addresses: &[String]) -> Self {
        self.jobs.push(json!({ "job_name": job, "static_configs": [{ "targets": addresses }] }));
        self
    }

    /// Any other entry of `scrape_configs`.
    #[must_use]
    pub fn job(mut self, config: Value) -> Self {
        self.jobs.push(config);
        self
    }

    /// Starts it.
    pub fn start(&self, sandbox: &Sandbox) -> Result<Prometheus> {
        let interval = format!("{}s", self.interval.map_or(1, |interval| interval.as_secs()));
        let config = json!({
            "global": { "scrape_interval": interval, "evaluation_interval": interval },
            "rule_files": self.rules,
            "scrape_configs": self.jobs,
        });
        // JSON is YAML.
        Prometheus::start(sandbox, &config.to_string())
    }
}

/// A running Prometheus; dropping it kills it.
#[derive(Debug)]
pub struct Prometheus {
    process: Process,
    client: Client,
}

impl Prometheus {
    /// One that is to be started.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts one with this configuration.
    pub fn start(sandbox: &Sandbox, config: &str) -> Result<Self> {
        let program = programs::debian("prometheus", "usr/bin/prometheus")?;
        let directory = sandbox.directory("prometheus")?;
        std::fs::write(directory.join("prometheus.yml"), config)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = sandbox.command(program);
        command.arg(format!("--config.file={}", directory.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = Process::start("prometheus", &mut command, &directory.join("log"))?;
        Ok(Self { process, client: Client::new(port) })
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// What asks it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The `data` of an answer to a GET; an error with the end of its log when it has died.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.process.ensure_running()?;
        self.client.get(path).await
    }

    /// What an expression is now.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        self.process.ensure_running()?;
        self.client.query(expression, None).await
    }
}

/// A client of a Prometheus on this machine.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    port: u16,
}

/// From when to when, and how far apart, in seconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// The first time.
    pub start: f64,
    /// The last time.
    pub end: f64,
    /// The seconds between two.
    pub step: f64,
}

impl Client {
    /// A client of one that listens on a port of the loopback.
    pub fn new(port: u16) -> Self {
        Self { port }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The `data` of an answer to a GET.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let exchange = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(answer)
        };
        let answer = timeout(ANSWER_DEADLINE, exchange).await.context("Prometheus does not answer")??;
        let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
        let value: Value = serde_json::from_str(body).with_context(|| answer.clone())?;
        ensure!(value["status"] == "success", "{path}: {value}");
        Ok(value["data"].clone())
    }

    /// What an expression is, now or at a time.
    pub async fn query(&self, expression: &str, at: Option<f64>) -> Result<Vec<Value>> {
        let at = at.map(|at| format!("&time={at}")).unwrap_or_default();
        self.result(&format!("/api/v1/query?query={}{at}", encoded(expression))).await
    }

    /// What an expression was over a time.
    pub async fn query_range(&self, expression: &str, range: Range) -> Result<Vec<Value>> {
        let Range { start, end, step } = range;
        let query = encoded(expression);
        self.result(&format!("/api/v1/query_range?query={query}&start={start}&end={end}&step={step}")).await
    }

    async fn result(&self, path: &str) -> Result<Vec<Value>> {
        let data = self.get(path).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }
}

fn encoded(text: &str) -> String {
    let encode = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(encode).collect()
}
