use dressage_wire::task::Target;
use http::header::{CONNECTION, HOST, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};

/// The port of a URL without one.
const HTTP_PORT: u16 = 80;

/// What is between two ends of one connection, and not passed on (RFC 9110, 7.6.1).
const HOPS: [HeaderName; 8] = [
    CONNECTION,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// What a request is for. The `Host` header has no say in it.
pub(super) fn target(uri: &Uri, is_connect: bool) -> Result<Target, String> {
    let no_proxy_request = "this is a proxy: ask it with CONNECT, or with a whole http:// URL";
    let authority = uri.authority().ok_or(no_proxy_request)?;
    let usual_port = match (is_connect, uri.scheme_str()) {
        (true, None) => None,
        (false, Some("http")) => Some(HTTP_PORT),
        _ => return Err(no_proxy_request.into()),
    };
    Target::parse(authority.as_str(), usual_port)
        .map_err(|error| format!("what is asked for cannot be reached: {error}"))
}

/// Makes a request to the proxy one to the host: without what is between the client and the proxy, and for no other host
/// than the one that was looked at.
pub(super) fn rewrite<B>(request: &mut Request<B>, target: &Target) -> Result<(), String> {
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    remove_hops(request.headers_mut());
    let host = match target.port {
        HTTP_PORT => target.host.to_string(),
        _ => target.to_string(),
    };
    let host = HeaderValue::try_from(host).map_err(|error| error.to_string())?;
    request.headers_mut().insert(HOST, host);
    Ok(())
}

/// Removes what is not passed on.
pub(super) fn remove_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOPS.iter().chain(&named) {
        headers.remove(name);
    }
}
