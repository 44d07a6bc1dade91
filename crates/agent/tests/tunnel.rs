//! Connections to ports of the guest.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use common::Agent;

/// Asks for a tunnel; the head of the answer, and the connection after it.
fn tunnel(agent: &Agent, to: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(&agent.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "POST /forkd/v1/tunnel/{to} HTTP/1.1\r\nHost: agent\r\nConnection: upgrade\r\nUpgrade: forkd-tunnel\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    (String::from_utf8(head).unwrap(), stream)
}

#[test]
fn bytes_flow_both_ways_and_each_direction_ends_by_itself() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        // Answers only when all has come, which it sees by the end of the other direction.
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            all.reverse();
            stream.write_all(&all).unwrap();
        });
        let agent = Agent::plain();
        let (head, mut stream) = tunnel(&agent, &port.to_string());
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        got.reverse();
        assert_eq!(got, sent);
        server.join().unwrap();
    }
}

#[test]
fn what_is_sent_to_the_echo_comes_back() {
    let agent = Agent::plain();
    let (_, mut stream) = tunnel(&agent, "echo");
    for word in ["one", "two"] {
        stream.write_all(word.as_bytes()).unwrap();
        let mut back = vec![0; word.len()];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, word.as_bytes());
    }
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_port_without_a_listener_is_said_and_the_connection_can_be_used_again() {
    let agent = Agent::plain();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (head, mut stream) = tunnel(&agent, &free.to_string());
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"code\":\"port_not_open\""), "{rest}");
    assert!(rest.contains(&format!("nothing listens on port {free}")), "{rest}");
    assert!(rest.contains("HTTP/1.1 204 "), "{rest}");
    assert!(tunnel(&agent, "0").0.starts_with("HTTP/1.1 400 "));
}
