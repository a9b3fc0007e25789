use crate::address::{AddressPolicy, RefusedAddress};
use hyper_util::client::legacy::connect::dns::Name;
use std::future::Future;
use std::io;
#[cfg(feature = "shared")]
use std::net::IpAddr;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// The system's resolver, through the C library.
#[cfg(not(target_feature = "crt-static"))]
mod system;

/// DNS spoken here: a static program cannot load the C library's resolvers.
#[cfg(any(target_feature = "crt-static", test))]
mod stub;

#[cfg(target_feature = "crt-static")]
use stub as lookup;
#[cfg(not(target_feature = "crt-static"))]
use system as lookup;

/// All addresses of a host, whatever they are.
#[cfg(feature = "shared")]
pub(crate) async fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    lookup::addresses(host).await
}

/// Finds the addresses of an endpoint, and refuses those that nothing may be sent to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolver {
    policy: AddressPolicy,
}

/// A name that leads nowhere, or where it must not.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    /// The resolver knows no address.
    #[error("host `{host}` was not found")]
    NotFound {
        host: String,
        #[source]
        source: io::Error,
    },
    /// It knows only addresses that are not connected to.
    #[error("host `{host}` is refused")]
    Refused {
        host: String,
        #[source]
        source: RefusedAddress,
    },
}

impl Resolver {
    pub(crate) fn new(policy: AddressPolicy) -> Self {
        Self { policy }
    }

    async fn resolve(self, host: String) -> Result<std::vec::IntoIter<SocketAddr>, ResolveError> {
        let found = match lookup::addresses(&host).await {
            Ok(found) => found,
            Err(source) => return Err(ResolveError::NotFound { host, source }),
        };
        let mut refused = None;
        let mut allowed = Vec::with_capacity(found.len());
        for address in found {
            match self.policy.check(address) {
                Ok(()) => allowed.push(SocketAddr::new(address, 0)),
                Err(reason) => refused = Some(reason),
            }
        }
        match refused {
            Some(source) if allowed.is_empty() => Err(ResolveError::Refused { host, source }),
            _ if allowed.is_empty() => Err(ResolveError::NotFound {
                host,
                source: io::Error::new(io::ErrorKind::NotFound, "it has no address"),
            }),
            _ => Ok(allowed.into_iter()),
        }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = ResolveError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(self.resolve(name.as_str().to_owned()))
    }
}
