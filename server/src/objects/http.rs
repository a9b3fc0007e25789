use async_trait::async_trait;
use http::header::USER_AGENT;
use http::uri::Scheme;
use http::{HeaderValue, Response};
use http_body_util::BodyExt as _;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector as Connector, HttpError, HttpErrorKind, HttpRequest,
    HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use std::time::Duration;

/// The longest that a connection may take to be there.
const CONNECT: Duration = Duration::from_secs(5);

/// The longest that a request may take until its reply begins: a part on a slow line.
const REPLY: Duration = Duration::from_secs(300);

/// Connects with the HTTP client and the certificates that the rest of this program has.
#[derive(Debug)]
pub(super) struct OwnClient;

/// Requests by that client.
#[derive(Debug)]
struct Requests {
    client: Client<HttpsConnector<HttpConnector>, HttpRequestBody>,
    /// Whether requests may go without TLS.
    plain: bool,
}

/// Why no reply came.
#[derive(Debug, thiserror::Error)]
enum NoReply {
    #[error("it is asked without TLS")]
    Plain,
    #[error("no reply within {} s", .0.as_secs())]
    Silent(Duration),
}

impl Connector for OwnClient {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT));
        let connector = HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp);
        Ok(HttpClient::new(Requests {
            client: Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .build(connector),
            plain: plain.as_deref() == Some("true"),
        }))
    }
}

#[async_trait]
impl HttpService for Requests {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.uri().scheme() != Some(&Scheme::HTTPS) && !self.plain {
            return Err(HttpError::new(HttpErrorKind::Unknown, NoReply::Plain));
        }
        let name = HeaderValue::from_static(concat!("dressage/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().entry(USER_AGENT).or_insert(name);
        let reply = tokio::time::timeout(REPLY, self.client.request(request)).await;
        let reply = match reply {
            Err(_) => return Err(HttpError::new(HttpErrorKind::Timeout, NoReply::Silent(REPLY))),
            Ok(Err(error)) if error.is_connect() => {
                return Err(HttpError::new(HttpErrorKind::Connect, error));
            }
            Ok(reply) => reply.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?,
        };
        let (head, body) = reply.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(Response::from_parts(head, HttpResponseBody::new(body)))
    }
}
