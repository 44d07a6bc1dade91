use std::net::SocketAddr;

use forkd_engine::Engine;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{CreateSandboxes, Publish};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

/// A server that sends back what it is sent: the fake's guests have this computer's ports.
async fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                drop(tokio::io::copy(&mut read, &mut write).await);
            });
        }
    });
    port
}

fn publishing(host: &str, guest: u16) -> CreateSandboxes {
    let publish = vec![Publish { host: host.parse().unwrap(), guest }];
    CreateSandboxes { publish, ..children(1) }
}

async fn comes_back(at: SocketAddr) -> bool {
    let trip = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(b"ping").await?;
        let mut back = [0; 4];
        stream.read_exact(&mut back).await?;
        Ok::<_, std::io::Error>(&back == b"ping")
    };
    trip.await.unwrap_or(false)
}

fn published(engine: &Engine, id: &SandboxId) -> Vec<(SocketAddr, bool)> {
    let shown = engine.sandbox(id).unwrap().settings.published;
    shown.iter().map(|p| (p.port.host, p.listening)).collect()
}

#[tokio::test]
async fn a_published_port_is_reached_until_the_sandbox_ends_also_under_another_controller() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let id = id(&engine.fork(publishing("127.0.0.1:0", server().await)).await.unwrap()[0]);
    let [(at, true)] = published(&engine, &id)[..] else { panic!("{:?}", published(&engine, &id)) };
    assert!(at.port() != 0 && comes_back(at).await);

    engine.shutdown();
    drop(engine);
    let engine = house.open(bounds()).await;
    eventually(|| published(&engine, &id) == [(at, true)]).await;
    assert!(comes_back(at).await);

    // Nobody is connected to one that stands still.
    engine.pause(&id).await.unwrap();
    assert!(!comes_back(at).await);
    engine.resume(&id).await.unwrap();
    assert!(comes_back(at).await);

    engine.kill(&id).await.unwrap();
    eventually(|| std::net::TcpListener::bind(at).is_ok()).await;
}

#[tokio::test]
async fn an_address_that_is_taken_is_said_before_anything_is_made() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = engine.fork(publishing(&taken.local_addr().unwrap().to_string(), 80)).await.unwrap_err();
    assert_eq!((refused.code(), refused.class()), ("address_taken", ErrorClass::Conflict));
    let foreign = engine.fork(publishing("192.0.2.1:0", 80)).await.unwrap_err();
    assert_eq!(foreign.class(), ErrorClass::Caller);
    let many = CreateSandboxes { n: 2, ..publishing("127.0.0.1:0", 80) };
    assert_eq!(engine.fork(many).await.unwrap_err().class(), ErrorClass::Caller);
    assert_eq!(engine.fork(publishing("127.0.0.1:0", 0)).await.unwrap_err().class(), ErrorClass::Caller);
    assert!(engine.sandboxes().is_empty());
    // A fork that fails gives back what it took.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    house.mood("no-identity");
    engine.fork(publishing(&free.to_string(), 80)).await.unwrap_err();
    eventually(|| std::net::TcpListener::bind(free).is_ok()).await;
}
