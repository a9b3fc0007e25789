use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

/// Says where names lead. What it says is checked by who asks.
pub trait Names: Send + Sync {
    /// The addresses of a host.
    ///
    /// # Errors
    /// Nothing is known of it.
    fn addresses<'a>(
        &'a self,
        name: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;
}

/// What this machine's resolver says.
#[derive(Clone, Copy, Debug)]
pub struct SystemNames;

impl Names for SystemNames {
    fn addresses<'a>(
        &'a self,
        name: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(crate::resolve::addresses(name))
    }
}
