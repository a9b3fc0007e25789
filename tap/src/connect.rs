use crate::endpoint::{BaseUrl, Endpoint, EndpointError, ProxyPolicy};
use crate::resolve::Resolver;
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use secrecy::ExposeSecret;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Makes connections to one endpoint: through its proxy, within its deadline, never to a refused address.
#[derive(Clone)]
pub(crate) struct Connector {
    inner: HttpsConnector<Transport>,
    timeout: Duration,
}

/// No connection within the deadline, TLS included.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {} s", .0.as_secs_f64())]
pub(crate) struct ConnectTimeout(Duration);

impl Connector {
    pub(crate) fn new(endpoint: &Endpoint, url: &BaseUrl) -> Result<Self, EndpointError> {
        let mut http = HttpConnector::new_with_resolver(Resolver::new(endpoint.address_policy));
        http.enforce_http(false);
        http.set_nodelay(true);
        let transport = Transport::new(http, endpoint, url)?;
        let inner = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(endpoint)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(transport);
        Ok(Self {
            inner,
            timeout: endpoint.timeouts.connect,
        })
    }

    /// What a proxy wants to see on each request that it forwards itself.
    pub(crate) fn proxy_authorization(endpoint: &Endpoint, url: &BaseUrl) -> Option<HeaderValue> {
        let proxy = proxy_for(endpoint, url)?;
        proxy.basic_auth().filter(|_| !url.is_https()).cloned()
    }
}

impl Service<Uri> for Connector {
    type Response = <HttpsConnector<Transport> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.inner.call(uri);
        let timeout = self.timeout;
        Box::pin(async move {
            tokio::time::timeout(timeout, connecting)
                .await
                .map_err(|_| ConnectTimeout(timeout))?
        })
    }
}

/// The ways bytes get to an endpoint's host.
#[derive(Clone)]
pub(crate) enum Transport {
    Direct(HttpConnector<Resolver>),
    /// The proxy reads the requests: `http` endpoints.
    Forward {
        http: HttpConnector<Resolver>,
        proxy: Uri,
    },
    /// The proxy passes bytes on: `https` endpoints.
    Tunnel(Tunnel<HttpConnector<Resolver>>),
}

impl Transport {
    fn new(http: HttpConnector<Resolver>, endpoint: &Endpoint, url: &BaseUrl) -> Result<Self, EndpointError> {
        let Some(proxy) = proxy_for(endpoint, url) else {
            return Ok(Self::Direct(http));
        };
        if proxy.uri().scheme_str() != Some("http") {
            return Err(EndpointError::BadProxy {
                endpoint: endpoint.name.clone(),
                problem: "is not an http:// proxy",
            });
        }
        if !url.is_https() {
            return Ok(Self::Forward {
                http,
                proxy: proxy.uri().clone(),
            });
        }
        let tunnel = Tunnel::new(proxy.uri().clone(), http);
        Ok(Self::Tunnel(match proxy.basic_auth() {
            Some(authorization) => tunnel.with_auth(authorization.clone()),
            None => tunnel,
        }))
    }
}

impl Service<Uri> for Transport {
    type Response = Wire;
    type Error = BoxError;
    type Future = Connecting<Wire>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // None of the connectors has anything to wait for.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        match self {
            Self::Direct(http) => {
                let connecting = http.call(uri);
                Box::pin(async move {
                    Ok(Wire {
                        io: connecting.await?,
                        forwarded: false,
                    })
                })
            }
            Self::Forward { http, proxy } => {
                let connecting = http.call(proxy.clone());
                Box::pin(async move {
                    Ok(Wire {
                        io: connecting.await?,
                        forwarded: true,
                    })
                })
            }
            Self::Tunnel(tunnel) => {
                let connecting = tunnel.call(uri);
                Box::pin(async move {
                    Ok(Wire {
                        io: connecting.await?,
                        forwarded: false,
                    })
                })
            }
        }
    }
}

/// A TCP connection that knows whether a proxy reads its requests, which then carry whole URLs.
pub(crate) struct Wire {
    io: TokioIo<TcpStream>,
    forwarded: bool,
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        self.io.inner().connected().proxy(self.forwarded)
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

fn proxy_for(endpoint: &Endpoint, url: &BaseUrl) -> Option<hyper_util::client::proxy::matcher::Intercept> {
    let ProxyPolicy::Variables {
        https_proxy,
        http_proxy,
        no_proxy,
    } = &endpoint.proxy
    else {
        return None;
    };
    let text = |secret: &Option<secrecy::SecretString>| {
        secret
            .as_ref()
            .map(|secret| secret.expose_secret().to_owned())
            .unwrap_or_default()
    };
    Matcher::builder()
        .https(text(https_proxy))
        .http(text(http_proxy))
        .no(no_proxy.clone().unwrap_or_default())
        .build()
        .intercept(url.uri())
}

fn tls_config(endpoint: &Endpoint) -> Result<ClientConfig, EndpointError> {
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    if let Some(path) = &endpoint.ca_file {
        let pem = std::fs::read(path).map_err(|source| EndpointError::CaFile {
            endpoint: endpoint.name.clone(),
            path: path.clone(),
            source,
        })?;
        let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(EndpointError::NoCertificate {
                endpoint: endpoint.name.clone(),
                path: path.clone(),
            });
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| EndpointError::UnusableUrl {
            endpoint: endpoint.name.clone(),
            problem: "needs a TLS version that is not built in",
        })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
