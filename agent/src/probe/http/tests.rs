use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::service::service_fn;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpSocket};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const LOCAL: Reach = Reach { guest: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), local: false };

/// What a server has been asked: paths, and the headers of the last request.
type Asked = Arc<Mutex<(Vec<String>, HeaderMap)>>;

/// A server that answers `/<status>` with that status, `/to/<place>` with a redirect to it, and `/again` with one to itself.
async fn server(https: bool) -> (u16, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Asked::default();
    let seen = asked.clone();
    let tls = https.then(acceptor);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (seen, tls) = (seen.clone(), tls.clone());
            tokio::spawn(async move {
                let answer = service_fn(move |request: Request<Incoming>| {
                    let mut seen = seen.lock().unwrap();
                    let path = request.uri().to_string();
                    let reply = reply(&path);
                    seen.0.push(path);
                    seen.1 = request.headers().clone();
                    async move { Ok::<_, hyper::Error>(reply) }
                });
                let server = hyper::server::conn::http1::Builder::new();
                match tls {
                    Some(tls) => {
                        let stream = tls.accept(stream).await.unwrap();
                        let _ = server.serve_connection(TokioIo::new(stream), answer).await;
                    }
                    None => _ = server.serve_connection(TokioIo::new(stream), answer).await,
                }
            });
        }
    });
    (port, asked)
}

fn acceptor() -> tokio_rustls::TlsAcceptor {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["server.test".into()]).unwrap().self_signed(&key);
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.unwrap().der().clone()], key);
    Arc::new(config.unwrap()).into()
}

fn reply(path: &str) -> Response<Full<Bytes>> {
    let answer = Response::builder();
    let (answer, body) = if path == "/again" {
        (answer.status(307).header("location", path), String::new())
    } else if let Some(place) = path.strip_prefix("/to/") {
        (answer.status(302).header("location", place), "elsewhere".to_owned())
    } else if path == "/large" {
        (answer.status(200), "x".repeat(1 << 20))
    } else {
        (answer.status(path[1..].split('?').next().unwrap().parse::<u16>().unwrap()), "words".to_owned())
    };
    answer.body(Full::from(body)).unwrap()
}

fn get(port: u16, path: &str) -> HttpGet {
    HttpGet { https: false, host: None, port, path: path.to_owned(), headers: Vec::new() }
}

async fn status(get: &HttpGet) -> u16 {
    get.send(LOCAL, Purpose::Probe, LIMIT).await.unwrap().status.as_u16()
}

#[tokio::test]
async fn a_plain_request_looks_like_the_kubelets() {
    let (port, asked) = server(false).await;
    let answer = get(port, "/200?a=b").send(LOCAL, Purpose::Probe, LIMIT).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (200, "words"));
    let (paths, headers) = asked.lock().unwrap().clone();
    assert_eq!(paths, ["/200?a=b"]);
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("user-agent").as_deref(), Some("kube-probe/1.36"));
    assert_eq!(header("accept").as_deref(), Some("*/*"));
    assert_eq!(header("connection").as_deref(), Some("close"));
    assert_eq!(header("host"), Some(format!("127.0.0.1:{port}")));
    get(port, "/200").send(LOCAL, Purpose::Lifecycle, LIMIT).await.unwrap();
    assert_eq!(asked.lock().unwrap().1["user-agent"], "kube-lifecycle/1.36");
}

#[tokio::test]
async fn headers_of_the_pod_come_before_the_defaults() {
    let (port, asked) = server(false).await;
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let headers = vec![
        header("host", "app.test"),
        header("X-A", "1"),
        header("x-a", "2"),
        header("Accept", ""),
        header("User-Agent", "me"),
        header("X-Name", "Müller"),
    ];
    assert_eq!(status(&HttpGet { headers, ..get(port, "/204") }).await, 204);
    let headers = asked.lock().unwrap().1.clone();
    assert!(headers["host"] == "app.test" && headers["user-agent"] == "me", "{headers:?}");
    assert_eq!(headers.get_all("x-a").iter().count(), 2);
    assert!(!headers.contains_key("accept"));
    assert_eq!(headers["x-name"].as_bytes(), "Müller".as_bytes());
}

#[tokio::test]
async fn any_certificate_is_accepted() {
    let (port, _) = server(true).await;
    assert_eq!(status(&HttpGet { https: true, ..get(port, "/200") }).await, 200);
    let plain = get(port, "/200").send(LOCAL, Purpose::Probe, LIMIT).await;
    assert!(matches!(plain, Err(HttpError::NoAnswer { .. })), "{plain:?}");
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_only() {
    let (port, asked) = server(false).await;
    assert_eq!(status(&get(port, "/to//500")).await, 500);
    assert_eq!(status(&get(port, &format!("/to/http://127.0.0.1:{port}/503"))).await, 503);
    let host = vec![("Host".to_owned(), "app.test".to_owned())];
    assert_eq!(status(&HttpGet { headers: host.clone(), ..get(port, "/to//200") }).await, 200);
    assert_eq!(asked.lock().unwrap().1["host"], "app.test", "a place on the same host");
    let named = HttpGet { headers: host, ..get(port, &format!("/to/http://127.0.0.1:{port}/200")) };
    assert_eq!(status(&named).await, 200);
    assert_eq!(asked.lock().unwrap().1["host"], format!("127.0.0.1:{port}"), "a host by name");
    let before = asked.lock().unwrap().0.len();
    let away = get(port, "/to/http://0.0.0.0/").send(LOCAL, Purpose::Probe, LIMIT).await.unwrap();
    assert_eq!((away.status.as_u16(), away.body.as_str()), (302, "elsewhere"));
    assert_eq!(asked.lock().unwrap().0.len(), before + 1);
}

#[tokio::test]
async fn redirects_in_a_circle_come_to_an_end() {
    let (port, asked) = server(false).await;
    let error = get(port, "/to//again").send(LOCAL, Purpose::Probe, LIMIT).await.unwrap_err().to_string();
    assert_eq!(error, format!("Get \"http://127.0.0.1:{port}/again\": stopped after 10 redirects"));
    assert_eq!(asked.lock().unwrap().0.len(), 10);
}

#[tokio::test]
async fn only_the_beginning_of_a_large_answer_is_read() {
    let (port, _) = server(false).await;
    let answer = get(port, "/large").send(LOCAL, Purpose::Probe, LIMIT).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, MAX_BODY));
}

#[tokio::test]
async fn each_missing_answer_has_the_kubelets_words() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // It refuses connections, and keeps its port from other programs of this machine.
    let unheard = TcpSocket::new_v4().unwrap();
    unheard.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed_port = unheard.local_addr().unwrap().port();
    let words = |result: Result<HttpAnswer, HttpError>| result.unwrap_err().to_string();
    let silent = words(get(port, "/x").send(LOCAL, Purpose::Probe, Duration::from_millis(50)).await);
    let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(silent, format!("Get \"http://127.0.0.1:{port}/x\": {late}"));
    let closed = words(get(closed_port, "/x").send(LOCAL, Purpose::Probe, LIMIT).await);
    let refused = format!("dial tcp 127.0.0.1:{closed_port}: connect: connection refused");
    assert_eq!(closed, format!("Get \"http://127.0.0.1:{closed_port}/x\": {refused}"));
    let bad = HttpGet { headers: vec![("A".into(), "b\nc".into())], ..get(port, "/") };
    assert!(words(bad.send(LOCAL, Purpose::Probe, LIMIT).await).contains("invalid header field value"));
}

#[tokio::test]
async fn an_answer_that_stalls_or_breaks_off_is_neither_good_nor_bad() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut stalled = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 64];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart").await.unwrap();
            if request[..length].starts_with(b"GET /stall") {
                stalled.push(stream);
            }
        }
    });
    let broken = get(port, "/break").send(LOCAL, Purpose::Probe, LIMIT).await;
    assert!(matches!(broken, Err(HttpError::BrokenBody { .. })), "{broken:?}");
    let stalled = get(port, "/stall").send(LOCAL, Purpose::Probe, Duration::from_millis(200)).await;
    assert!(matches!(stalled, Err(HttpError::BrokenBody { .. })), "{stalled:?}");
}
