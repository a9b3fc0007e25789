use super::secret::Secret;
use super::sha1::sha1;
use super::websocket::WebSocket;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dressage_wire::relay::SECRET_HEADER;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The longest head of a request: proxies add to it.
const HEAD_BYTES: usize = 16 << 10;

/// How long a request may take to be there.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that are read at once. Who holds all of them harms the sandbox it is in, and nobody else.
const MOST_REQUESTS: usize = 32;

/// What the key of a request is hashed with (RFC 6455, 1.3).
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Carries connections over whatever carrier the host dialled last, for ever. A new one ends the one before: the host has one
/// at a time, and knows of its loss first.
pub(super) async fn serve(carriers: TcpListener, secret: Secret, listener: TcpListener) {
    let secret = Arc::new(secret);
    let mut requests: JoinSet<io::Result<WebSocket>> = JoinSet::new();
    let mut carrier = None;
    loop {
        let current: Option<WebSocket> = carrier.take();
        let carrying = async {
            match current {
                Some(carrier) => super::carry_over(Box::new(carrier), &listener).await,
                None => std::future::pending().await,
            }
        };
        let next = async {
            loop {
                tokio::select! {
                    biased;
                    Some(request) = requests.join_next() => {
                        if let Ok(Ok(websocket)) = request {
                            return websocket;
                        }
                    }
                    accepted = carriers.accept(), if requests.len() < MOST_REQUESTS => match accepted {
                        Ok((connection, _)) => {
                            let secret = Arc::clone(&secret);
                            requests.spawn(async move {
                                tokio::time::timeout(HEAD_TIMEOUT, greet(connection, &secret)).await?
                            });
                        }
                        Err(_) => tokio::time::sleep(super::ACCEPT_PAUSE).await,
                    },
                }
            }
        };
        tokio::select! {
            biased;
            websocket = next => carrier = Some(websocket),
            () = carrying => {}
        }
    }
}

/// Reads a request for a WebSocket, and answers it.
async fn greet(mut connection: TcpStream, secret: &Secret) -> io::Result<WebSocket> {
    connection.set_nodelay(true)?;
    let mut received = Vec::new();
    let end = loop {
        if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if received.len() >= HEAD_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if connection.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let rest = received.split_off(end);
    let answer = answer(&received, secret);
    // The secret, and whatever a proxy passed on of the host's keys, are not kept: `black_box` keeps the writing.
    received.fill(0);
    std::hint::black_box(&received);
    let text = match &answer {
        Ok(accept) => format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        ),
        Err(status) => format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
    };
    connection.write_all(text.as_bytes()).await?;
    match answer {
        Ok(_) => Ok(WebSocket::new(connection, rest)),
        Err(_) => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// What a head is answered with: the accepted key, or a status. Nothing is told apart for who has not the secret.
fn answer(head: &[u8], secret: &Secret) -> Result<String, &'static str> {
    let header = |wanted: &str| {
        head.split(|byte| *byte == b'\n').skip(1).find_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at_checked(colon)?;
            name.eq_ignore_ascii_case(wanted.as_bytes())
                .then(|| value.get(1..).unwrap_or_default().trim_ascii())
        })
    };
    if !secret.is(header(SECRET_HEADER).unwrap_or_default()) {
        return Err("403 Forbidden");
    }
    match (header("upgrade"), header("sec-websocket-key")) {
        (Some(upgrade), Some(key)) if upgrade.eq_ignore_ascii_case(b"websocket") => {
            Ok(STANDARD.encode(sha1(&[key, MAGIC].concat())))
        }
        _ => Err("426 Upgrade Required"),
    }
}

#[cfg(test)]
mod tests;
