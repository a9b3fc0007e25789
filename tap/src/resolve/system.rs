use std::io;
use std::net::IpAddr;

/// All addresses of a host.
pub(super) async fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((host, 0)).await?;
    Ok(found.map(|address| address.ip()).collect())
}
