//! A simulated GitHub: an App logs in, and the runners of one organization are registered and removed.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{Method, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The App, its installation, and the organization.
pub const APP_ID: &str = "4711";
/// The installation of the App in the organization.
pub const INSTALLATION_ID: &str = "815";
/// The organization.
pub const ORG: &str = "tuist";
const INSTALLATION_TOKEN: &str = "ghs_canaryInstallationToken";
/// How tokens begin that the simulated runner registers with.
pub const REGISTRATION_TOKEN: &str = "AAAAcanaryRegistrationToken";

/// A running simulated GitHub. It ends with this value.
#[derive(Debug)]
pub struct Github {
    url: String,
    private_key: String,
    world: Arc<Mutex<World>>,
    _tasks: JoinSet<()>,
}

/// What GitHub has.
#[derive(Debug, Default)]
pub struct World {
    /// The names of registered runners.
    pub runners: Vec<String>,
    /// How many registration tokens were made.
    pub tokens: usize,
    /// Whether GitHub answers every call with 503.
    pub is_down: bool,
    directory: PathBuf,
}

impl Github {
    /// Starts one on a free port of the loopback; the App's key is made in a directory.
    pub async fn start(directory: &Path) -> Result<Self> {
        let (key, public) = (directory.join("app.pem"), directory.join("app.pub"));
        openssl(Command::new("openssl").args(["genrsa", "-out"]).arg(&key).arg("2048"))?;
        openssl(Command::new("openssl").args(["rsa", "-pubout", "-in"]).arg(&key).arg("-out").arg(&public))?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port")?;
        let url = format!("http://{}", listener.local_addr()?);
        let world = Arc::new(Mutex::new(World { directory: directory.to_owned(), ..World::default() }));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Arc::clone(&world)));
        Ok(Self { url, private_key: std::fs::read_to_string(key)?, world, _tasks: tasks })
    }

    /// Where its API is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The App's key, in PEM.
    pub fn private_key(&self) -> &str {
        &self.private_key
    }

    /// The state, to look at or to change.
    pub fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

fn openssl(command: &mut Command) -> Result<()> {
    let output = command.output().context("cannot start openssl")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn serve(listener: TcpListener, world: Arc<Mutex<World>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let world = Arc::clone(&world);
        connections.spawn(async move {
            let service = service_fn(async |request: Request<Incoming>| {
                let (status, answer) = lock(&world).answer(&request);
                let body = if answer.is_null() { String::new() } else { answer.to_string() };
                let response = Response::builder().status(status).body(Full::new(Bytes::from(body)));
                Ok::<_, Infallible>(response.unwrap_or_default())
            });
            let io = TokioIo::new(stream);
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
        });
    }
}

impl World {
    fn answer<B>(&mut self, request: &Request<B>) -> (StatusCode, Value) {
        let refusal = |status: StatusCode, message: &str| (status, json!({ "message": message }));
        if self.is_down {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable");
        }
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        if header("user-agent").is_none() {
            return refusal(StatusCode::FORBIDDEN, "Request forbidden by administrative rules");
        }
        let bearer = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let token = bearer.unwrap_or_default();
        let path = request.uri().path();
        let runners = format!("/orgs/{ORG}/actions/runners");
        if path == format!("/app/installations/{INSTALLATION_ID}/access_tokens") {
            return match self.check_app(token) {
                Ok(()) => (StatusCode::CREATED, json!({ "token": INSTALLATION_TOKEN })),
                Err(problem) => refusal(StatusCode::UNAUTHORIZED, &format!("{problem:#}")),
            };
        }
        if token != INSTALLATION_TOKEN {
            return refusal(StatusCode::UNAUTHORIZED, "Bad credentials");
        }
        match (request.method(), path.strip_prefix(&runners)) {
            (&Method::POST, Some("/registration-token")) => {
                self.tokens += 1;
                (StatusCode::CREATED, json!({ "token": format!("{REGISTRATION_TOKEN}{}", self.tokens) }))
            }
            (&Method::GET, Some("")) => {
                let all = self.runners.iter().enumerate();
                let shown: Vec<_> =
                    all.map(|(id, name)| json!({ "id": id, "name": name, "busy": false })).collect();
                (StatusCode::OK, json!({ "total_count": shown.len(), "runners": shown }))
            }
            (&Method::DELETE, Some(id)) => {
                let id =
                    id.trim_start_matches('/').parse::<usize>().ok().filter(|id| *id < self.runners.len());
                match id {
                    Some(id) => {
                        self.runners.remove(id);
                        (StatusCode::NO_CONTENT, Value::Null)
                    }
                    None => refusal(StatusCode::NOT_FOUND, "Not Found"),
                }
            }
            _ => refusal(StatusCode::NOT_FOUND, "Not Found"),
        }
    }

    /// Whether a JSON Web Token is the App's, signed with its key, and valid for at most ten minutes.
    fn check_app(&self, token: &str) -> Result<()> {
        let parts: Vec<&str> = token.split('.').collect();
        let [head, claims, signature] = parts[..] else { anyhow::bail!("not a JSON web token") };
        let decoded = |part: &str| -> Result<Value> {
            Ok(serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part)?)?)
        };
        ensure!(decoded(head)?["alg"] == "RS256", "the algorithm is not RS256");
        let claims_of = decoded(claims)?;
        ensure!(claims_of["iss"] == APP_ID, "it is not of this App");
        let time = |key: &str| claims_of[key].as_i64().context("a time is missing");
        let (issued, expires, now) = (time("iat")?, time("exp")?, Timestamp::now().as_second());
        ensure!(issued <= now && now < expires && expires - issued <= 600, "it is not valid now");
        let (message, file) = (self.directory.join("signed"), self.directory.join("signature"));
        std::fs::write(&message, format!("{head}.{claims}"))?;
        std::fs::write(&file, BASE64_URL_SAFE_NO_PAD.decode(signature)?)?;
        let public = self.directory.join("app.pub");
        let mut verify = Command::new("openssl");
        verify.args(["dgst", "-sha256", "-verify"]).arg(public).arg("-signature").arg(file).arg(message);
        openssl(&mut verify)
    }
}
