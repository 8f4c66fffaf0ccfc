//! `httpGet`, for probes and lifecycle hooks: a new connection each time, no proxy, no check of the server's certificate.

mod redirect;
mod tls;

use std::net::IpAddr;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, USER_AGENT};
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::reach::Reach;
use super::spec::{BadAction, port};
use crate::error_chain::chain;
use crate::state::container_spec::HttpGet;

const MAX_BODY: usize = 10 << 10;
/// The first request, and the redirects that are followed.
const MAX_REQUESTS: usize = 10;

/// What a request is made for; servers see it in the `User-Agent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Probe,
    Lifecycle,
}

impl Purpose {
    fn user_agent(self) -> &'static str {
        match self {
            Self::Probe => "kube-probe/1.36",
            Self::Lifecycle => "kube-lifecycle/1.36",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpAnswer {
    /// The status. A redirect stays one when it leads to another host.
    pub(crate) status: StatusCode,
    pub(crate) body: String,
}

/// A request that got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// The text is the kubelet's.
    #[error("Get \"{url}\": {why}")]
    NoAnswer { url: String, why: String },
    /// The text is the kubelet's.
    #[error("Get \"{url}\": tls: first record does not look like a TLS handshake")]
    NotTls { url: String },
    #[error("the answer to Get \"{url}\" broke off: {why}")]
    BrokenBody { url: String, why: String },
}

impl HttpGet {
    pub(crate) fn read(action: &HTTPGetAction, container: &Container) -> Result<Self, BadAction> {
        let headers = action.http_headers.iter().flatten();
        Ok(Self {
            https: action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
            host: action.host.clone().filter(|host| !host.is_empty()),
            port: port(&action.port, container)?,
            path: action.path.clone().unwrap_or_default(),
            headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
        })
    }

    /// Asks, and follows redirects for as long as they stay on the host.
    pub(crate) async fn send(
        &self,
        reach: Reach,
        purpose: Purpose,
        limit: Duration,
    ) -> Result<HttpAnswer, HttpError> {
        let deadline = Instant::now() + limit;
        let first = self.url(reach.guest)?;
        let headers = self.header_map(purpose).map_err(|why| no_answer(&first, why))?;
        let (mut url, mut keeps_host) = (first.clone(), true);
        for _ in 0..MAX_REQUESTS {
            let mut headers = headers.clone();
            if !keeps_host {
                headers.remove(HOST);
            }
            let exchange = match timeout_at(deadline, exchange(&url, headers, reach)).await {
                Ok(exchange) => exchange?,
                Err(_) => return Err(no_answer(&url, late("while awaiting headers"))),
            };
            let redirect = redirect::of(&exchange.response, &url).map_err(|why| no_answer(&url, why))?;
            match redirect {
                Some(next) if next.url.host() == first.host() => {
                    keeps_host &= next.relative;
                    url = next.url;
                }
                _ => {
                    let answer = timeout_at(deadline, exchange.read()).await;
                    let answer = answer.unwrap_or_else(|_| Err(late("while reading body")));
                    return answer.map_err(|why| HttpError::BrokenBody { url: url.to_string(), why });
                }
            }
        }
        Err(no_answer(&url, format!("stopped after {MAX_REQUESTS} redirects")))
    }

    /// The same request without TLS and without `Authorization`.
    #[must_use]
    pub(crate) fn without_tls(&self) -> Self {
        let mut plain = Self { https: false, ..self.clone() };
        plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(AUTHORIZATION.as_str()));
        plain
    }

    pub(crate) fn authority(&self, pod: IpAddr) -> String {
        let host = self.host.clone().unwrap_or_else(|| pod.to_string());
        super::tcp::address(&host, self.port)
    }

    fn url(&self, pod: IpAddr) -> Result<Uri, HttpError> {
        let authority = self.authority(pod);
        let scheme = if self.https { Scheme::HTTPS } else { Scheme::HTTP };
        let path = redirect::escaped(&self.path);
        let text = format!("{scheme}://{authority}{path}");
        let built = Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build();
        built.map_err(|error| HttpError::NoAnswer { url: text, why: error.to_string() })
    }

    fn header_map(&self, purpose: Purpose) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let key = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("net/http: invalid header field name {name:?}"))?;
            // As in the kubelet, any text without control characters. The value may be a secret.
            let value = HeaderValue::from_bytes(value.as_bytes())
                .map_err(|_| format!("net/http: invalid header field value for {name:?}"))?;
            headers.append(key, value);
        }
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(purpose.user_agent()));
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        // An empty value means: do not send the header.
        for name in [USER_AGENT, ACCEPT, HOST] {
            if headers.get(&name).is_some_and(HeaderValue::is_empty) {
                headers.remove(name);
            }
        }
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        Ok(headers)
    }
}

/// One request that was answered, with the connection that the rest of the answer comes by.
struct Exchange {
    response: Response<Incoming>,
    /// Ends the connection when it is dropped.
    _connection: JoinSet<Result<(), hyper::Error>>,
}

impl Exchange {
    async fn read(mut self) -> Result<HttpAnswer, String> {
        let mut body = Vec::new();
        while body.len() < MAX_BODY
            && let Some(frame) = self.response.body_mut().frame().await
        {
            let frame = frame.map_err(|error| chain(&error))?;
            body.extend_from_slice(frame.data_ref().map_or(&[][..], |bytes| bytes));
        }
        body.truncate(MAX_BODY);
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(HttpAnswer { status: self.response.status(), body })
    }
}

async fn exchange(url: &Uri, mut headers: HeaderMap, reach: Reach) -> Result<Exchange, HttpError> {
    let failed = |why| no_answer(url, why);
    let broken = |error: http::Error| no_answer(url, error.to_string());
    let authority = url.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    // Brackets belong to the URL, not to the address.
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let https = url.scheme() == Some(&Scheme::HTTPS);
    let port = url.port_u16().unwrap_or(if https { 443 } else { 80 });
    if !headers.contains_key(HOST) {
        headers.insert(HOST, HeaderValue::from_str(authority).map_err(|error| broken(error.into()))?);
    }
    let target = url.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut request = Request::get(target).body(Empty::new()).map_err(broken)?;
    *request.headers_mut() = headers;
    let stream = super::tcp::connect(host, port, reach).await.map_err(failed)?;
    if https {
        converse(tls::wrap(url, host, stream).await?, request).await.map_err(failed)
    } else {
        converse(stream, request).await.map_err(failed)
    }
}

async fn converse<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<Exchange, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| chain(&error))?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| chain(&error))?;
    Ok(Exchange { response, _connection: driver })
}

fn no_answer(url: &Uri, why: String) -> HttpError {
    HttpError::NoAnswer { url: url.to_string(), why }
}

/// The kubelet's words for what took too long.
fn late(phase: &str) -> String {
    format!("context deadline exceeded (Client.Timeout exceeded {phase})")
}

#[cfg(test)]
mod tests;
