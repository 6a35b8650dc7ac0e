//! A chat over TCP, in lines, for several people: the first line of each is a name. What a crash interrupts is answered after it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use bantam::agent::{Agent, Cancel};
use bantam::bus::{Channel, Inbound, Outbound};
use bantam::error::Result;
use bantam::provider::OpenAi;
use bantam::session::Files;

struct TcpChat(TcpListener);

type Clients = Arc<Mutex<HashMap<String, TcpStream>>>;

impl Channel for TcpChat {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let (clients, (outbound, events)) = (Clients::default(), channel::<Outbound>());
        let known = clients.clone();
        thread::spawn(move || {
            for stream in self.0.incoming().flatten() {
                let (inbound, known) = (inbound.clone(), known.clone());
                thread::spawn(move || read(stream, &inbound, &known));
            }
        });
        thread::spawn(move || {
            for event in events {
                let mut clients = clients.lock().unwrap();
                if let (Some(text), Some(client)) =
                    (event.text(), clients.get_mut(&event.origin.chat))
                {
                    writeln!(client, "{text}").ok();
                }
            }
        });
        Ok(outbound)
    }
}

fn read(stream: TcpStream, inbound: &Sender<Inbound>, clients: &Clients) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let name = lines.next()?.ok()?;
    clients.lock().unwrap().insert(name.clone(), stream);
    for line in lines.map_while(std::io::Result::ok) {
        let message = Inbound::line("tcp", &name, line).ok()?;
        inbound.send(message).ok()?;
    }
    None
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(Files::at("agent-home"))
        .build()?;
    let listener = TcpListener::bind(std::env::var("CHAT").unwrap_or("127.0.0.1:7007".to_owned()))?;
    println!("{}", listener.local_addr()?);
    let channels: Vec<Box<dyn Channel>> = vec![Box::new(TcpChat(listener))];
    bantam::serve(agent, "agent-home", channels, &Cancel::new(None))
}
