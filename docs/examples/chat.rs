//! A chat over TCP, in lines, for several people: the first line of each is a line of people.txt, their name and a word that only
//! they know. What a crash interrupts is answered after it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bantam::{Agent, Cancel, Channel, FileStore, Inbound, Inbox, OpenAi, Outbound, Result};

struct TcpChat {
    listener: TcpListener,
    people: Vec<String>,
}

/// The clients by the names of their people.
type Clients = Mutex<HashMap<String, Arc<TcpStream>>>;

impl Channel for TcpChat {
    fn start(self: Box<Self>, inbox: Inbox) -> Result<Sender<Outbound>> {
        let (clients, (outbound, events)) = (Arc::new(Clients::default()), channel());
        let known = clients.clone();
        thread::spawn(move || write(&events, &clients));
        let Self { listener, people } = *self;
        let people = Arc::new(people);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (inbox, known, people) = (inbox.clone(), known.clone(), people.clone());
                thread::spawn(move || read(stream, &people, &inbox, &known));
            }
        });
        Ok(outbound)
    }
}

fn read(stream: TcpStream, people: &[String], inbox: &Inbox, clients: &Clients) -> Option<()> {
    // A client that does not read keeps nobody else waiting for longer.
    let patience = Some(Duration::from_secs(5));
    stream.set_write_timeout(patience).ok()?;
    let stream = Arc::new(stream);
    let mut lines = BufReader::new(&*stream).lines();
    let first = lines.next()?.ok()?;
    let known = people.iter().find(|person| **person == first)?;
    let name = known.split_whitespace().next()?.to_owned();
    clients.lock().ok()?.insert(name.clone(), stream.clone());
    for line in lines.map_while(std::io::Result::ok) {
        let message = Inbound::line("tcp", &name, line).ok()?;
        inbox.add(message).ok()?;
    }
    None
}

fn write(events: &Receiver<Outbound>, clients: &Clients) {
    for event in events {
        let Some(text) = event.text() else { continue };
        // Writing may take a while: the lock is not held over it.
        let client = clients
            .lock()
            .map(|all| all.get(&event.origin.chat).cloned());
        if let Ok(Some(client)) = client {
            writeln!(&*client, "{text}").ok();
        }
    }
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(FileStore::at("agent-home"))
        .build()?;
    let people = std::fs::read_to_string("people.txt")?;
    let people = people.lines().map(str::to_owned).collect();
    let listener = TcpListener::bind(std::env::var("CHAT").unwrap_or("127.0.0.1:7007".to_owned()))?;
    println!("{}", listener.local_addr()?);
    let chat: Box<dyn Channel> = Box::new(TcpChat { listener, people });
    bantam::serve(agent, "agent-home", vec![chat], &Cancel::new(None))
}
