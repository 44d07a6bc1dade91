//! `forkd port-forward`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use forkd_protocol::guest::TUNNEL_PROTOCOL;
use forkd_protocol::names::SandboxId;
use http::{Method, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::interrupted;
use crate::client::{self, Client};
use crate::context::Context;
use crate::error::CliError;
use crate::ui::{self, Ui};

/// Make ports of a sandbox reachable on this computer.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd port-forward sb-6a2f-0001 8000 5433:5432\n\n\
                  Goes on until it is interrupted. Each connection is one of the sandbox's own; one that nothing in the\n\
                  sandbox listens for is closed.")]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
    /// A port here, where it is another one (0 is any), and the port in the sandbox
    #[arg(required = true, value_name = "[LOCAL:]PORT")]
    ports: Vec<Ports>,
    /// Address here to listen at
    #[arg(long, value_name = "IP", default_value_t = IpAddr::from(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
}

/// A port here and one in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    local: u16,
    guest: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (local, guest) = text.split_once(':').unwrap_or((text, text));
        let port = |text: &str| text.parse::<u16>().map_err(|_| format!("{text:?} is no port"));
        match (port(local)?, port(guest)?) {
            (_, 0) => Err("a port in a sandbox is from 1 to 65535".to_owned()),
            (local, guest) => Ok(Self { local, guest }),
        }
    }
}

/// What is listened at, for scripts.
#[derive(Debug, Serialize)]
struct Listening {
    local: SocketAddr,
    port: u16,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    // One that is not there is said before anybody connects.
    let _: serde_json::Value = client.get(&format!("/v1/sandboxes/{}", args.id)).await?;
    let mut told = Vec::new();
    for ports in args.ports {
        let at = SocketAddr::new(args.address, ports.local);
        let listener =
            TcpListener::bind(at).await.map_err(|e| CliError::io(format!("listening at {at}"), e))?;
        let local = listener.local_addr().map_err(|e| CliError::io("listening", e))?;
        told.push(Listening { local, port: ports.guest });
        tokio::spawn(accept(listener, client.clone(), context.ui.clone(), args.id.clone(), ports.guest));
    }
    context.ui.show(&told, |all| {
        ui::table(&["HERE", "SANDBOX"], all.iter().map(|l| [l.local.to_string(), l.port.to_string()]))
    });
    interrupted().await
}

async fn accept(listener: TcpListener, client: Client, ui: Ui, id: SandboxId, port: u16) {
    while let Ok((stream, _)) = listener.accept().await {
        let (client, ui, id) = (client.clone(), ui.clone(), id.clone());
        tokio::spawn(async move {
            if let Err(e) = carry(stream, &client, &id, port).await {
                ui.error(&e);
            }
        });
    }
}

async fn carry(mut local: TcpStream, client: &Client, id: &SandboxId, port: u16) -> Result<(), CliError> {
    let mut guest = connect(client, id, &port.to_string()).await?;
    // Its end is seen by both sides.
    let _ = copy_bidirectional(&mut local, &mut guest).await;
    Ok(())
}

/// A connection to a port of a sandbox, or what else `to` names.
pub(crate) async fn connect(
    client: &Client,
    id: &SandboxId,
    to: &str,
) -> Result<TokioIo<hyper::upgrade::Upgraded>, CliError> {
    let request = client
        .request(Method::POST, &format!("/v1/sandboxes/{id}/tunnel/{to}"))
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, TUNNEL_PROTOCOL);
    client.upgrade(request.body(client::empty())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_port_or_two() {
        assert_eq!("8000".parse(), Ok(Ports { local: 8000, guest: 8000 }));
        assert_eq!("0:80".parse(), Ok(Ports { local: 0, guest: 80 }));
        for bad in ["", "0", "80:0", "80:", ":80", "65536", "1:2:3"] {
            assert!(bad.parse::<Ports>().is_err(), "{bad:?}");
        }
    }
}
