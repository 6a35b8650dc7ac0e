//! A proxy for HTTPS: it leads a CONNECT to an address of the test's choice.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::model::Model;

/// A proxy that leads every connection to the same model, whatever host it is asked for. It ends with the test process.
pub struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Leads every connection to this model.
    pub fn to(model: &Model) -> Self {
        let base = model.base();
        Self::leading_to(
            base.strip_prefix("http://")
                .unwrap()
                .strip_suffix("/v1")
                .unwrap()
                .to_owned(),
        )
    }

    /// Leads every connection to this address.
    pub fn leading_to(target: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, seen) = (target.clone(), Arc::clone(&seen));
                thread::spawn(move || lead(client, &target, &seen));
            }
        });
        Self { address, asked }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The first line of every connection.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Reads a CONNECT and passes bytes both ways. Whoever closes first ends it.
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
