//! A proxy for HTTPS that connects every CONNECT to an address chosen by the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::model::Model;
use super::sites::serve;

/// Connects a client to this address, and records its first line.
type Connect = fn(TcpStream, &str, &Mutex<Vec<String>>) -> Option<()>;

/// A proxy that connects every request to the same model, for any host. It ends with the test process.
pub struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Connects every request to this model.
    pub fn to(model: &Model) -> Self {
        Self::leading_to(model.address())
    }

    /// Connects every request to this address.
    pub fn leading_to(target: String) -> Self {
        Self::start(target, lead)
    }

    /// Starts a SOCKS proxy (RFC 1928) that connects every request to this model.
    pub fn socks_to(model: &Model) -> Self {
        Self::start(model.address(), socks)
    }

    fn start(target: String, connect: Connect) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let address = serve(move |client| {
            connect(client, &target, &seen);
        });
        Self { address, asked }
    }

    /// Returns the URL of a SOCKS proxy.
    pub fn socks_url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.address)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the first line of every connection.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Reads a CONNECT, and copies bytes in both directions until one side closes.
fn lead(client: TcpStream, target: &str, seen: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    seen.lock().unwrap().push(first.trim_end().to_owned());
    let mut line = String::from("x");
    while !line.trim().is_empty() {
        line.clear();
        reader.read_line(&mut line).ok()?;
    }
    let server = TcpStream::connect(target).ok()?;
    (&client)
        .write_all(b"HTTP/1.1 200 Connected\r\n\r\n")
        .ok()?;
    let (mut from_server, mut to_client) = (server.try_clone().ok()?, client);
    thread::spawn(move || std::io::copy(&mut from_server, &mut to_client).ok());
    std::io::copy(&mut reader, &mut &server).ok()?;
    server.shutdown(std::net::Shutdown::Both).ok()
}

/// Reads the two messages of a SOCKS client, and copies bytes in both directions.
fn socks(mut client: TcpStream, target: &str, seen: &Mutex<Vec<String>>) -> Option<()> {
    let mut read = |count: usize| {
        let mut bytes = vec![0; count];
        client.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let methods = usize::from(read(2)?[1]);
    read(methods)?;
    client.write_all(&[5, 0]).ok()?;
    let mut read = |count: usize| {
        let mut bytes = vec![0; count];
        client.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let host = match read(4)?[3] {
        1 => {
            let ip = read(4)?;
            format!("{}.{}.{}.{}", ip[0], ip[1], ip[2], ip[3])
        }
        _ => {
            let len = usize::from(read(1)?[0]);
            String::from_utf8(read(len)?).ok()?
        }
    };
    let port = read(2)?;
    let port = u16::from_be_bytes([port[0], port[1]]);
    seen.lock().unwrap().push(format!("{host}:{port}"));
    let server = TcpStream::connect(target).ok()?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).ok()?;
    let (mut up, mut down) = (client.try_clone().ok()?, server.try_clone().ok()?);
    let (mut from, mut to) = (client, server);
    thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut down, &mut up).ok()?;
    Some(())
}
